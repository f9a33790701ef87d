"""Codes and scales are taken apart as their rows have them, however these are cut and ordered."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from msgspec.structs import replace

from octavo.backends.eight_bit_rows import codes_and_scales, input_scale, scale_group
from octavo.backends.stored_rows import StoredRows
from octavo.loader.safetensors import open_safetensors
from octavo.models.values import Values
from octavo.quant.plain import multiplied
from octavo.quant.registry import formats_for
from tests.loader.make_files import write_safetensors
from tests.quant.made_up import MadeFormat, compressed, fp8, fp8_blocks

CASES: dict[str, MadeFormat] = {
    "blocks": fp8_blocks(16, 64),
    "a matrix": fp8({"quant_method": "fp8"}, lambda rows, columns: ()),
    "rows": fp8(compressed("channel"), lambda rows, columns: (rows, 1)),
}


@dataclass
class Made:
    rows: StoredRows
    values: np.ndarray


def made(name: str, directory: Path, shape: tuple[int, int] = (40, 200), **others: float) -> Made:
    form = CASES[name]
    tensors, values = form.quantise(shape, np.random.default_rng(0))
    arrays = {f"m.{ending}": array for ending, array in tensors.items()}
    arrays |= {f"m.{ending}": np.array(scale, np.float32) for ending, scale in others.items()}
    directory.mkdir(exist_ok=True)
    write_safetensors(directory / "model.safetensors", arrays)
    (format_,) = formats_for(Values(form.settings))[1:]
    (matrix,) = format_.find(open_safetensors(directory / "model.safetensors"))
    return Made(matrix.rows(), values)


def values_of(rows: StoredRows) -> np.ndarray:
    group = scale_group([rows])
    codes, scales = codes_and_scales(rows, group)
    assert codes.shape == (len(rows), rows.inputs)
    assert scales.shape == (len(rows), -(-rows.inputs // group))
    floats = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return floats * np.repeat(scales, group, axis=1)[:, : rows.inputs]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("is_made", [True, False], ids=["made", "in memory"])
def test_they_have_the_rows_values(name: str, is_made: bool, tmp_path: Path) -> None:
    rows = made(name, tmp_path).rows
    rows = rows if is_made else rows.in_memory()
    order = np.random.default_rng(1).permutation(len(rows))
    group = rows.layout.group
    for each in (
        rows,
        rows.cut(3, 21),
        rows.reordered(order),
        rows.reordered(order).cut(2, 9),
        rows.cut_inputs(group, 3 * group),
        multiplied(rows, np.float32(0.3)),
    ):
        np.testing.assert_allclose(values_of(each), each.floats(), rtol=1e-6)


@pytest.mark.parametrize("is_made", [True, False], ids=["made", "in memory"])
def test_a_scale_for_whole_rows_is_one_however_often_it_is_repeated(
    is_made: bool, tmp_path: Path
) -> None:
    for name in CASES:
        rows = made(name, tmp_path / name).rows
        rows = rows if is_made else rows.in_memory()
        assert scale_group([rows, rows]) == (200 if name != "blocks" else rows.layout.group)
    whole, blocks = (made(name, tmp_path / name).rows for name in ("rows", "blocks"))
    assert scale_group([whole, blocks]) == 0
    assert scale_group([whole, StoredRows.of(np.zeros((2, 200), np.float32))]) == 0


def test_parts_have_the_largest_scale_of_their_inputs_if_all_have_one(tmp_path: Path) -> None:
    scales = (0.5, 2.0, 1.0)
    parts = [made("a matrix", tmp_path / str(scale), input_scale=scale).rows for scale in scales]
    assert input_scale(parts) == 2.0
    without = made("a matrix", tmp_path / "without").rows
    assert input_scale([*parts, without]) is None
    for damaged in (0.0, -1.0, float("nan"), float("inf")):
        rows = made("a matrix", tmp_path / f"d{damaged}", input_scale=damaged).rows
        assert input_scale([rows]) is None
    changed = replace(parts[0], layout=replace(parts[0].layout, input_scale=None))
    assert input_scale([changed]) is None
