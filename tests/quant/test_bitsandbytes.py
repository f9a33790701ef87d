"""The rows of bitsandbytes have the values of its description, and of the package itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.backends.stored_rows import StoredRows
from octavo.loader.errors import (
    CheckpointError,
    CorruptFileError,
    TensorMismatchError,
    UnsupportedFormatError,
)
from octavo.loader.safetensors import open_safetensors
from octavo.models.checkpoint_weights import CheckpointWeights
from octavo.models.values import Values
from octavo.quant.methods.bitsandbytes import TABLES
from octavo.quant.registry import formats_for
from tests.loader.make_files import write_safetensors
from tests.quant.made_up import Array, Floats, MadeFormat, bitsandbytes, bitsandbytes_int8

INPUTS, OUTPUTS = 256, 40
CASES: dict[str, MadeFormat] = {
    "NF4": bitsandbytes("nf4"),
    "FP4": bitsandbytes("fp4"),
    "NF4 with the usual values": bitsandbytes("nf4", table=TABLES["nf4"]),
    "FP4 with the usual values": bitsandbytes("fp4", block=128, table=TABLES["fp4"]),
    "scales that are codes": bitsandbytes("nf4", nested=256),
    "scales that are codes, a last block that is shorter": bitsandbytes("nf4", nested=48),
    "blocks of 4096, which have many rows": bitsandbytes("nf4", block=4096),
    "stored as bfloat16": bitsandbytes("nf4", storage="bfloat16"),
    "8 bits": bitsandbytes_int8(),
    "8 bits, no order stated": bitsandbytes_int8(order=None),
}
Change = dict[str, Array | None]


def weights_of(
    directory: Path, made: MadeFormat, change: Change | None = None, inputs: int = INPUTS
) -> tuple[CheckpointWeights, Floats]:
    """Write one module, with some tensors changed or left out; return it and its values."""
    tensors, values = made.quantise((OUTPUTS, inputs), np.random.default_rng(0))
    changed = {**tensors, **(change or {})}
    arrays = {
        f"m.{name}": np.ascontiguousarray(array)
        for name, array in changed.items()
        if array is not None
    }
    metadata = made.metadata({"m.weight": (OUTPUTS, inputs)})
    path = write_safetensors(directory / "model.safetensors", arrays, metadata)
    weights = CheckpointWeights(open_safetensors(path), formats_for(Values(made.settings)))
    return weights, values


def read(
    directory: Path, made: MadeFormat, change: Change | None = None, inputs: int = INPUTS
) -> tuple[StoredRows, Floats]:
    """Write, check and read one module, as a model's loading does."""
    weights, values = weights_of(directory, made, change, inputs)
    weights.check({"m.weight": (OUTPUTS, inputs)}, ())
    rows = weights.rows("m.weight")
    assert weights.shapes() == {"m.weight": (OUTPUTS, inputs)}
    assert rows.type == weights.row_type("m.weight")
    assert set(weights.stored_types().values()) == {rows.type}
    return rows, values


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_description(name: str, tmp_path: Path) -> None:
    rows, values = read(tmp_path, CASES[name])
    np.testing.assert_array_equal(rows.floats(), values)
    half = rows.cut(3, 20).cut_inputs(0, INPUTS // 2 if rows.layout.group < INPUTS else INPUTS)
    np.testing.assert_array_equal(half.floats(), values[3:20, : half.inputs])


@pytest.mark.parametrize("kind", TABLES)
def test_types_name_what_a_backend_must_know(kind: str, tmp_path: Path) -> None:
    """Other values, or groups that are no multiple of 64, have types without a number."""
    table = TABLES[kind]
    for block, values, inputs, ending in (
        (64, table, 256, "By64"),
        (256, table, 256, "By64"),
        (32, table, 256, ""),
        (64, table, 96, ""),
        (64, table * np.float32(0.99), 256, ""),
    ):
        rows, expected = read(
            tmp_path, bitsandbytes(kind, block=block, table=values), inputs=inputs
        )
        assert rows.type == kind.upper() + ending
        np.testing.assert_array_equal(rows.floats(), expected)


@pytest.mark.parametrize(("inputs", "group"), [(80, 16), (96, 32), (72, 8)])
def test_blocks_may_cross_rows(inputs: int, group: int, tmp_path: Path) -> None:
    """The groups of the rows are the largest that are in one block each."""
    rows, values = read(tmp_path, bitsandbytes("nf4", nested=256), inputs=inputs)
    assert rows.layout.group == group
    np.testing.assert_array_equal(rows.floats(), values)


@pytest.mark.parametrize("inputs", [63, 68])
def test_groups_that_would_be_tiny_are_refused(inputs: int, tmp_path: Path) -> None:
    made = bitsandbytes("nf4")
    with pytest.raises(UnsupportedFormatError, match=f"rows of {inputs} codes cross the blocks"):
        read(tmp_path, made, inputs=inputs)


def test_rows_are_as_small_as_the_file(tmp_path: Path) -> None:
    """Each block of 64 has 32 bytes of codes, and a scale of four."""
    rows, _ = read(tmp_path, bitsandbytes("nf4"))
    assert rows.num_bytes == OUTPUTS * INPUTS // 64 * 36


def test_matrices_have_their_own_tables(tmp_path: Path) -> None:
    first, second = (
        read(tmp_path, bitsandbytes("nf4"), {"weight.quant_map": np.arange(start, start + 16.0)})[0]
        for start in (0, 1)
    )
    assert first.layout.table != second.layout.table
    assert np.all(first.floats() < second.floats())


STATE = "weight.quant_state.bitsandbytes__nf4"


def state(**change: object) -> Array:
    """Return the bytes of a description."""
    known = {"quant_type": "nf4", "blocksize": 64, "shape": [OUTPUTS, INPUTS]}
    return np.frombuffer(json.dumps({**known, **change}).encode(), np.uint8)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"weight.absmax": None}, TensorMismatchError, "'m.weight.absmax'"),
        ({"weight.quant_map": None}, TensorMismatchError, "'m.weight.quant_map'"),
        ({"weight": None}, TensorMismatchError, "missing: 'm.weight'"),
        ({"weight.absmax": np.ones(9, np.float32)}, TensorMismatchError, r"\[9\].*\[160\]"),
        ({"weight.quant_map": np.ones(15, np.float32)}, TensorMismatchError, r"\[15\].*\[16\]"),
        ({"weight": np.ones((9, 1), np.uint8)}, TensorMismatchError, r"\[9, 1\].*\[5120, 1\]"),
        ({STATE: state(shape=[INPUTS, OUTPUTS])}, TensorMismatchError, r"shape \[256, 40\]"),
        ({STATE: state(shape=[1 << 40, 1 << 40])}, CorruptFileError, "shape"),
        ({STATE: state(shape=[])}, CorruptFileError, "shape"),
        ({STATE: state(blocksize=0)}, CorruptFileError, "blocksize"),
        ({STATE: state(blocksize=1 << 20)}, CorruptFileError, "blocksize"),
        ({STATE: state(nested_blocksize=256)}, TensorMismatchError, "'m.weight.nested_absmax'"),
        ({STATE: state()[:-1]}, CorruptFileError, "is not the description"),
        ({STATE: state()[:0]}, CorruptFileError, "is not the description"),
        ({STATE: np.full(9, 255, np.uint8)}, CorruptFileError, "is not the description"),
        ({STATE: state(more="." * 5000)}, CorruptFileError, "at most 4,096 are read"),
    ],
)
def test_a_damaged_matrix_is_one_clear_error(
    change: Change, error: type[CheckpointError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        read(tmp_path, bitsandbytes("nf4"), change)


def test_quantised_scales_must_be_codes(tmp_path: Path) -> None:
    change: Change = {"weight.absmax": np.ones(160, np.float32)}
    with pytest.raises(CorruptFileError, match=r"'m.weight.absmax'.*F32, must be U8"):
        read(tmp_path, bitsandbytes("nf4", nested=256), change)


def test_scales_of_rows_must_be_as_many_as_rows(tmp_path: Path) -> None:
    with pytest.raises(TensorMismatchError, match=r"'m.SCB'.*\[9\].*\[40\]"):
        read(tmp_path, bitsandbytes_int8(), {"SCB": np.ones(9, np.float32)})


def test_weights_in_the_order_of_a_card_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFormatError, match="other than row by row"):
        read(tmp_path, bitsandbytes_int8(order=2))


def test_skipped_modules_are_plain(tmp_path: Path) -> None:
    values = np.ones((OUTPUTS, INPUTS), np.float32)
    path = write_safetensors(tmp_path / "model.safetensors", {"lm_head.weight": values})
    settings = {**bitsandbytes("nf4").settings, "llm_int8_skip_modules": ["lm_head"]}
    weights = CheckpointWeights(open_safetensors(path), formats_for(Values(settings)))
    assert weights.row_type("lm_head.weight") == "F32"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"load_in_8bit": True}, "exactly one of"),
        ({"load_in_4bit": False}, "exactly one of"),
        ({"load_in_4bit": 1}, "load_in_4bit must be true or false"),
        ({"bnb_4bit_quant_type": "af4"}, "'af4' is not supported; supported are: nf4, fp4"),
    ],
)
def test_settings_that_are_not_supported_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        formats_for(Values({**bitsandbytes("nf4").settings, **change}))


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_values_are_those_of_the_package(kind: str, is_nested: bool, tmp_path: Path) -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    import torch

    values = torch.from_numpy(np.random.default_rng(0).standard_normal((24, 192), np.float32))
    codes, stored = functional.quantize_4bit(values, quant_type=kind, compress_statistics=is_nested)
    parts = {f"weight.{part}": tensor for part, tensor in stored.as_dict(packed=True).items()}
    arrays = {f"m.{part}": each.numpy() for part, each in {"weight": codes, **parts}.items()}
    path = write_safetensors(tmp_path / "model.safetensors", arrays)
    settings = bitsandbytes(kind).settings
    weights = CheckpointWeights(open_safetensors(path), formats_for(Values(settings)))
    weights.check({"m.weight": (24, 192)}, ())
    expected = functional.dequantize_4bit(codes, stored).numpy()
    np.testing.assert_array_equal(weights.rows("m.weight").floats(), expected)


def test_eight_bits_are_those_of_the_package(tmp_path: Path) -> None:
    """The package multiplies by 1/127, which is not exactly a division."""
    functional = pytest.importorskip("bitsandbytes.functional")
    import torch

    values = torch.from_numpy(np.random.default_rng(0).standard_normal((24, 192), np.float32))
    codes, largest, _ = functional.int8_vectorwise_quant(values.to(torch.float16))
    made = bitsandbytes_int8()
    arrays = {"m.weight": codes.numpy(), "m.SCB": largest.numpy()}
    path = write_safetensors(tmp_path / "model.safetensors", arrays)
    weights = CheckpointWeights(open_safetensors(path), formats_for(Values(made.settings)))
    weights.check({"m.weight": (24, 192)}, ())
    expected = functional.int8_vectorwise_dequant(codes, largest).numpy()
    np.testing.assert_allclose(weights.rows("m.weight").floats(), expected, rtol=3e-7)
