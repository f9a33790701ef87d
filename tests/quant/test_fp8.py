"""FP8's rows have the values that the format's description gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from octavo.loader.errors import CheckpointError, TensorMismatchError
from octavo.loader.safetensors import open_safetensors
from octavo.models.values import Values
from octavo.quant.registry import formats_for
from tests.loader.make_files import write_safetensors
from tests.quant.made_up import MadeFormat, compressed, fp8, fp8_blocks

CASES: dict[str, MadeFormat] = {
    "blocks": fp8_blocks(128, 128),
    "small blocks": fp8_blocks(16, 64),
    "a scale for a matrix": fp8({"quant_method": "fp8"}, lambda rows, columns: ()),
    "a scale for a matrix, as a vector": fp8(compressed("tensor"), lambda rows, columns: (1,)),
    "a scale for a row": fp8(compressed("channel"), lambda rows, columns: (rows, 1)),
    "a scale for a row, as a vector": fp8(
        {"quant_method": "fbgemm_fp8"}, lambda rows, columns: (rows,)
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shape", [(256, 256), (200, 328)], ids=["whole blocks", "ragged"])
def test_values_are_those_of_the_description(
    name: str, shape: tuple[int, int], tmp_path: Path
) -> None:
    made = CASES[name]
    tensors, values = made.quantise(shape, np.random.default_rng(0))
    arrays = {f"m.{ending}": array for ending, array in tensors.items()}
    unused = {
        "m.input_scale": np.ones((), np.float32),
        "m.output_scale": np.ones((), np.float32),
        "k.k_scale": np.ones(1, np.float32),
        "k.kv_scale": np.ones(1, np.float32),
    }
    write_safetensors(tmp_path / "model.safetensors", arrays | unused)
    checkpoint = open_safetensors(tmp_path / "model.safetensors")
    (format_,) = formats_for(Values(made.settings))[1:]
    (matrix,) = format_.find(checkpoint)
    assert (matrix.name, matrix.shape) == ("m.weight", shape)
    rows = matrix.rows()
    is_large = name == "blocks"
    expected = "FP8" if shape[1] % 32 else "F8By128" if is_large else "F8By32"
    assert rows.type == matrix.type == expected
    assert matrix.stored_shapes(shape) == {n: a.shape for n, a in arrays.items()}
    assert set(format_.unused(checkpoint, ())) == set(unused)
    np.testing.assert_array_equal(rows.floats(), values)
    # Rows of activations share a scale only where weights have none for blocks of inputs.
    assert rows.layout.input_scale == (None if "blocks" in name else 1.0)


@pytest.mark.parametrize("shape", [(4, 32), (3, 4, 32)], ids=["a matrix", "a stack of experts"])
def test_a_matrix_without_a_scale_is_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    name = "m.experts.gate_up_proj" if len(shape) == 3 else "m.weight"
    arrays = {name: np.zeros(shape, ml_dtypes.float8_e4m3fn)}
    write_safetensors(tmp_path / "model.safetensors", arrays)
    (format_,) = formats_for(Values(fp8_blocks(128, 128).settings))[1:]
    with pytest.raises(TensorMismatchError) as raised:
        list(format_.find(open_safetensors(tmp_path / "model.safetensors")))
    assert raised.value.tensor == name


def test_every_code_has_its_value(tmp_path: Path) -> None:
    """NaN has two codes; there is no infinity."""
    codes = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).reshape(2, 128)
    arrays = {"m.weight": codes, "m.weight_scale_inv": np.full((1, 1), 0.5, np.float32)}
    write_safetensors(tmp_path / "model.safetensors", arrays)
    (format_,) = formats_for(Values(fp8_blocks(128, 128).settings))[1:]
    (matrix,) = format_.find(open_safetensors(tmp_path / "model.safetensors"))
    values = matrix.rows().floats()
    np.testing.assert_array_equal(values, codes.astype(np.float32) * np.float32(0.5))
    assert np.nanmax(values) == 224
    assert np.isnan(values).sum() == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quant_method": "fp8", "fmt": "e5m2"}, "'e5m2' are not supported"),
        (
            {"quant_method": "fp8", "weight_block_size": [128]},
            r"weight_block_size .* two sizes from 1 to 4,096, is .\[128\]",
        ),
        ({"quant_method": "fp8", "weight_block_size": [0, 1]}, "two sizes from 1 to 4,096"),
    ],
)
def test_settings_that_are_not_supported_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        formats_for(Values(settings))
