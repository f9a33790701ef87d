"""HQQ's rows have the values that the format's description gives them."""

from __future__ import annotations

from pathlib import Path

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
from tests.loader.make_files import write_safetensors
from tests.quant.made_up import Array, MadeFormat, hqq
from tests.quant.test_bitsandbytes import INPUTS, OUTPUTS, Change, read

CASES: dict[str, MadeFormat] = {
    "1 bit": hqq(1, 64),
    "2 bits": hqq(2, 16),
    "3 bits": hqq(3, 64),
    "3 bits, a last part that is filled up": hqq(3, 256),
    "4 bits": hqq(4, 64),
    "4 bits, groups of 8": hqq(4, 8),
    "4 bits, a scale for a row": hqq(4, None),
    "4 bits, stored as bfloat16": hqq(4, 64, storage="bfloat16"),
    "8 bits": hqq(8, 128),
}


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_description(name: str, tmp_path: Path) -> None:
    rows, values = read(tmp_path, CASES[name])
    np.testing.assert_array_equal(rows.floats(), values)
    assert rows.layout.has_zero_points
    group = rows.layout.group
    np.testing.assert_array_equal(rows.cut_inputs(0, group).floats(), values[:, :group])


def test_rows_are_as_small_as_the_file(tmp_path: Path) -> None:
    """Each group of 64 has 32 bytes of codes, and eight of scale and zero point."""
    rows, _ = read(tmp_path, hqq(4, 64))
    assert rows.num_bytes == OUTPUTS * INPUTS // 64 * 40


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_values_are_those_of_the_package(bits: int, tmp_path: Path) -> None:
    quantize = pytest.importorskip("hqq.core.quantize")
    import torch

    values = torch.from_numpy(np.random.default_rng(0).standard_normal((24, 192), np.float32))
    linear = torch.nn.Linear(192, 24, bias=False)
    linear.weight.data = values
    settings = quantize.BaseQuantizeConfig(nbits=bits, group_size=64, axis=1)
    layer = quantize.HQQLinear(linear, settings, compute_dtype=torch.float32, device="cpu")
    arrays = {f"m.{name}": tensor.numpy() for name, tensor in layer.state_dict().items()}
    path = write_safetensors(tmp_path / "model.safetensors", arrays)
    weights = CheckpointWeights(open_safetensors(path), formats_for(Values(hqq(4, 64).settings)))
    weights.check({"m.weight": (24, 192)}, ())
    np.testing.assert_array_equal(weights.rows("m.weight").floats(), layer.dequantize().numpy())


def number(value: float, kind: type = np.int32) -> Array:
    return np.array([value], kind)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"scale": None}, TensorMismatchError, "missing: 'm.scale'"),
        ({"zero": None}, TensorMismatchError, "missing: 'm.zero'"),
        ({"nbits": None, "axis": None}, TensorMismatchError, "'m.nbits', 'm.axis'"),
        ({"shape": None}, TensorMismatchError, "'m.shape'"),
        ({"scale": np.ones((9, 1), np.float16)}, TensorMismatchError, r"\[9, 1\].*\[160, 1\]"),
        ({"W_q": np.ones((9, 64), np.uint8)}, TensorMismatchError, r"\[9, 64\].*\[80, 64\]"),
        ({"shape": np.array([INPUTS, OUTPUTS])}, CorruptFileError, r"states \[256, 40\]"),
        ({"shape": np.array([1 << 40, 1 << 40])}, CorruptFileError, "not the shape of a matrix"),
        ({"shape": np.array([-1, 2])}, CorruptFileError, "not the shape of a matrix"),
        ({"shape": np.ones(3, np.int64)}, CorruptFileError, "not the shape of a matrix"),
        ({"nbits": number(5)}, UnsupportedFormatError, "supported are: 1, 2, 3, 4, 8"),
        ({"nbits": number(1.58, np.float32)}, CorruptFileError, "not a whole number"),
        ({"nbits": np.ones(2, np.int32)}, CorruptFileError, "not a whole number"),
        ({"axis": number(0)}, UnsupportedFormatError, "supported is axis 1; quantise"),
        ({"group_size": number(0)}, UnsupportedFormatError, "groups of 0 do not divide"),
        ({"group_size": number(-64)}, UnsupportedFormatError, "groups of -64 do not divide"),
        ({"group_size": number(48)}, UnsupportedFormatError, "groups of 48 do not divide"),
        ({"group_size": number(4)}, UnsupportedFormatError, "supported are multiples of 8"),
    ],
)
def test_a_damaged_matrix_is_one_clear_error(
    change: Change, error: type[CheckpointError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        read(tmp_path, hqq(4, 64), change)
