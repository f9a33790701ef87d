"""The rows of torchao's files have the values of its description, and of the package itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.loader.errors import (
    CheckpointError,
    CorruptFileError,
    TensorMismatchError,
    UnsupportedFormatError,
)
from octavo.loader.safetensors import open_safetensors
from octavo.models.checkpoint_weights import CheckpointWeights
from octavo.models.values import Values
from octavo.quant.registry import formats_for
from tests.quant.made_up import MadeFormat, torchao, torchao_int4
from tests.quant.test_bitsandbytes import Change, read

CASES: dict[str, MadeFormat] = {
    "integers, a scale for a row": torchao(),
    "integers, a scale for a matrix": torchao(tall=0),
    "integers, groups": torchao(64),
    "integers, groups with zero points": torchao(32, zeros=np.int8),
    "integers, zero points in floats": torchao(32, zeros=np.float32),
    "integers, a zero point for a row": torchao(zeros=np.int8),
    "floats, a scale for a row": torchao(is_float=True),
    "floats, a scale for a matrix": torchao(is_float=True, tall=0),
    "floats, a scale for a group": torchao(128, is_float=True),
    "floats, a scale for a block": torchao(64, is_float=True, tall=8),
    "4 bits": torchao_int4(32),
    "4 bits in tiles": torchao_int4(128, is_tiled=True),
}


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_description(name: str, tmp_path: Path) -> None:
    rows, values = read(tmp_path, CASES[name])
    np.testing.assert_array_equal(rows.floats(), values)
    kind = "F8By" if "floats, a scale" in name else "I8Zero" if "zero point" in name else "I8By"
    assert rows.type.startswith("I4Mid" if name.startswith("4 bits") else kind)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"_weight_scale": None}, TensorMismatchError, "'m._weight_scale'"),
        ({"_weight_scale": np.ones((40, 7), np.float32)}, CorruptFileError, "7 scales for the 256"),
        ({"_weight_scale": np.ones((40, 0), np.float32)}, CorruptFileError, "0 scales for the 256"),
        ({"_weight_scale": np.ones((9, 8), np.float32)}, TensorMismatchError, r"\[9, 8\].*\[40, 8"),
        ({"_weight_scale": np.ones(40, np.float32)}, TensorMismatchError, r"\[40\].*\[40, 1\]"),
        ({"_weight_zero_point": np.ones((40, 1), np.int8)}, TensorMismatchError, r"\[40, 8\]"),
        ({"_weight_qdata": np.ones((40, 9), np.int8)}, CheckpointError, "inputs of a row"),
        ({"_weight_qdata": np.ones((40, 128), np.uint8)}, UnsupportedFormatError, "type U8"),
        ({"_weight_zero_point": np.full((40, 8), 0.5)}, UnsupportedFormatError, "whole numbers"),
        ({"_weight_act_pre_scale": np.ones(1)}, UnsupportedFormatError, "act_pre_scale"),
    ],
)
def test_a_damaged_matrix_is_one_clear_error(
    change: Change, error: type[CheckpointError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        read(tmp_path, torchao(32, zeros=np.int8), change)


@pytest.mark.parametrize(
    ("sizes", "error", "message"),
    [
        ({"shape": [39, 256]}, TensorMismatchError, r"\[39, 256\].*\[40, 256\]"),
        ({"shape": [40]}, UnsupportedFormatError, "no description of a matrix"),
        ({"shape": [40, 256, 1]}, CorruptFileError, "groups of an even size"),
        ({"shape": None}, UnsupportedFormatError, "no description of a matrix"),
        ({"shape": [40, 0]}, CorruptFileError, "groups of an even size"),
        ({"block_size": [1, 0]}, CorruptFileError, "groups of an even size"),
        ({"block_size": [1, 48]}, CorruptFileError, "groups of an even size"),
        ({"block_size": [1, 64]}, TensorMismatchError, r"\[(32|8), 40"),
        ({"block_size": [2, 32]}, UnsupportedFormatError, r"blocks of \[2, 32\]"),
    ],
)
@pytest.mark.parametrize("is_tiled", [False, True])
def test_a_description_of_four_bits_must_fit(
    sizes: dict[str, Any],
    error: type[CheckpointError],
    message: str,
    is_tiled: bool,
    tmp_path: Path,
) -> None:
    made = torchao_int4(32, is_tiled=is_tiled)
    assert made.describe
    described = json.loads(made.describe((40, 256)))
    described["_data"] |= sizes
    damaged = replace(made, describe=lambda shape: json.dumps(described))
    with pytest.raises(error, match=message):
        read(tmp_path, damaged)


def test_codes_of_four_bits_are_bytes_or_words(tmp_path: Path) -> None:
    change: Change = {"_weight_qdata": np.ones((40, 128), np.float32)}
    with pytest.raises(UnsupportedFormatError, match="type F32; supported are: I8, U8"):
        read(tmp_path, torchao_int4(32), change)


@pytest.mark.parametrize("scales", [(0, 3), (3, 0), (41, 2), (40, 257), (7, 3)])
def test_scales_of_floats_must_divide_the_matrix(scales: tuple[int, int], tmp_path: Path) -> None:
    change: Change = {"_weight_scale": np.ones(scales, np.float32)}
    with pytest.raises(CheckpointError, match=r"'m\._weight_scale'"):
        read(tmp_path, torchao(is_float=True), change)


def test_a_packed_class_is_refused_by_its_name(tmp_path: Path) -> None:
    kind = json.dumps({"_type": "Int4PlainInt32Tensor", "_data": {}})
    header = {
        "__metadata__": {"m.weight": kind},
        "m._weight_qdata": {"dtype": "I8", "shape": [1, 1], "data_offsets": [0, 1]},
    }
    text = json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0")
    with pytest.raises(UnsupportedFormatError, match=r"'Int4PlainInt32Tensor'.*Int8Tensor"):
        CheckpointWeights(open_safetensors(path), formats_for(Values(torchao().settings)))


@pytest.mark.parametrize("kind", ["integers", "floats"])
def test_values_are_those_of_the_package(kind: str, tmp_path: Path) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    files = pytest.importorskip("torchao.prototype.safetensors.safetensors_support")
    save_file = pytest.importorskip("safetensors.torch").save_file
    import torch

    values = torch.from_numpy(np.random.default_rng(0).standard_normal((24, 192), np.float32))
    name = "Int8Tensor" if kind == "integers" else "Float8Tensor"
    made = getattr(quantization, name).from_hp(values, granularity=quantization.PerRow())
    tensors, metadata = files.flatten_tensor_state_dict({"m.weight": made})
    save_file(tensors, tmp_path / "model.safetensors", metadata)
    checkpoint = open_safetensors(tmp_path / "model.safetensors")
    weights = CheckpointWeights(checkpoint, formats_for(Values(torchao().settings)))
    weights.check({"m.weight": (24, 192)}, ())
    expected = made.dequantize().numpy()
    np.testing.assert_array_equal(weights.rows("m.weight").floats(), expected)
