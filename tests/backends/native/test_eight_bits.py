"""Rows of other types become the int8 that the native engine makes of their floats."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.backends.native import _native, eight_bits
from octavo.backends.native.packing import Packer
from octavo.backends.stored_rows import Floats, RowLayout, StoredRows
from octavo.layers import Linear

INPUTS = 512


def packed(rows: StoredRows, weights: str) -> Floats:
    """Pack rows as int8, and return the values of every row."""
    packer = Packer(_native.Team(1, False), weights)  # type: ignore[arg-type]
    matrix = packer.matrix([rows], Linear(rows.inputs, len(rows)))
    assert matrix.formats == "U8"
    return np.stack([matrix.pieces[0].native.row(index) for index in range(len(rows))])


def unknown(floats: Floats) -> StoredRows:
    """Make rows of a type that only we can decode."""
    rows = StoredRows.of(floats)
    layout = RowLayout("OURS", 1, 4, rows.layout.decode)
    return StoredRows(layout, rows.inputs, rows.rows)


@pytest.mark.parametrize("rows_at_once", [1, 7, 1000])
def test_codes_are_those_that_the_engine_chooses(
    rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eight_bits, "ELEMENTS_AT_ONCE", rows_at_once * INPUTS)
    floats = np.random.default_rng(0).standard_normal((50, INPUTS), np.float32)
    floats[3] = 0
    floats[4, :40] = 1e-30
    floats[5, :3] = (np.nan, np.inf, -np.inf)
    floats[6, 33] = 1e30
    np.testing.assert_array_equal(
        packed(unknown(floats), "auto"), packed(StoredRows.of(floats), "int8")
    )


def test_rows_may_be_cut_and_in_another_order() -> None:
    generator = np.random.default_rng(1)
    floats = generator.standard_normal((50, INPUTS), np.float32)
    rows = unknown(floats).reordered(generator.permutation(50)).cut(5, 45)
    expected = packed(StoredRows.of(rows.floats()), "int8")
    np.testing.assert_array_equal(packed(rows, "auto"), expected)
