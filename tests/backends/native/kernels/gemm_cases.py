"""Helpers for tests of products: matrices of every format and tier, by `_native_test.gemm`.

The test of a format provides rows as a checkpoint stores them, and the float64 matrix that they
mean; everything else (odd sizes, equal bits, epilogues) is the same for all formats.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.backends.native import _native_test

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

TIERS: list[str] = _native_test.tiers()
PANEL = 32
# Batch sizes at which a row must get equal bits: every kernel, every even split of rows, more rows
# than a block, and so many that blocks are split.
ROW_COUNTS = (*range(1, 41), 100, 513)


@dataclass(frozen=True)
class Stored:
    """Rows as a checkpoint stores them, and the number of their type in GGUF."""

    type: int
    rows: Sequence[npt.NDArray[np.uint8] | None]
    inputs: int


def pack(format_name: str, stored: Stored) -> _native_test.PackedMatrix:
    return _native_test.pack(format_name, stored.type, stored.rows, stored.inputs)


def multiply(tier: str, matrix: _native_test.PackedMatrix, x: Floats, **epilogue: Any) -> Floats:
    """Return the product of all panels in one call, with NaN where nothing was written."""
    columns = epilogue.pop("columns", matrix.outputs)
    out = epilogue.pop("out", None)
    if out is None:
        out = np.full((len(x), columns), np.nan, np.float32)
    _native_test.gemm(tier, matrix, _native_test.prepare(tier, matrix.format, x), out, **epilogue)
    return out


def unpack(tier: str, matrix: _native_test.PackedMatrix) -> Floats:
    """Return the whole matrix as fp32, unpacked row by row."""
    rows = np.full((matrix.outputs, matrix.inputs), np.nan, np.float32)
    for output in range(matrix.outputs):
        _native_test.unpack_row(tier, matrix, output, rows[output])
    return rows


def bits(x: Floats) -> npt.NDArray[np.uint32]:
    return np.ascontiguousarray(x).view(np.uint32)


def check_rows_alone(tier: str, matrix: _native_test.PackedMatrix, x: Floats) -> None:
    """Check that a row's bits are the same alone and at every place in batches of every size.

    `x` has as many rows as the largest count. Each count takes its rows from another start, so
    that every row is tested at many places.
    """
    alone = np.concatenate([multiply(tier, matrix, row[None]) for row in x])
    for count in ROW_COUNTS:
        start = count * 7 % (len(x) - count + 1)
        together = multiply(tier, matrix, x[start : start + count])
        np.testing.assert_array_equal(bits(together), bits(alone[start : start + count]))


def check_places(
    tier: str, matrix: _native_test.PackedMatrix, row: Floats, counts: Sequence[int]
) -> None:
    """Check one row at every place among neighbours that are all alike and enormous."""
    alone = bits(multiply(tier, matrix, row[None]))[0]
    for count in counts:
        for place in range(count):
            x = np.full((count, len(row)), 3e4, np.float32)
            x[place] = row
            np.testing.assert_array_equal(bits(multiply(tier, matrix, x))[place], alone)


def check_panel_splits(tier: str, matrix: _native_test.PackedMatrix, x: Floats) -> None:
    """Check that every cut of the panels in two gives the bits of one call, and nothing beyond."""
    whole = bits(multiply(tier, matrix, x))
    for cut in range(matrix.panels + 1):
        out = multiply(tier, matrix, x, end_panel=cut)
        assert np.isnan(out[:, cut * PANEL :]).all()
        multiply(tier, matrix, x, first_panel=cut, out=out)
        np.testing.assert_array_equal(bits(out), whole)


def rounding_bound(exact_terms: Doubles, steps: int) -> Doubles:
    """Return how far an fp32 sum of these products may lie from the exact one.

    `exact_terms` is Σ|w·x|, `steps` how many roundings a term can pass through: the bound
    γ = steps · u / (1 - steps · u) of any order of additions, with u = 2^-24.
    """
    unit = 2.0**-24
    gamma = steps * unit / (1 - steps * unit)
    return exact_terms * gamma
