"""GGUF's blocks of NVFP4 are packed at their own size, with the numbers of their matrices."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.backends.native import _native
from octavo.backends.native.packing import Packer
from octavo.backends.stored_rows import StoredRows
from octavo.layers import GateUpLinear, Linear
from octavo.loader.gguf.types import NVFP4
from octavo.quant.plain import layout_of, multiplied

INPUTS = 192


def blocks(rows: int, factor: float | None, seed: int = 0) -> StoredRows:
    """Return rows of any codes and scales, among them the scale that would be NaN, and a sign."""
    stored = np.random.default_rng(seed).integers(0, 256, (rows, INPUTS // 64, 36)).astype(np.uint8)
    stored[0, 0, :4] = 0x7F, 0xFF, 0x80, 0x81
    made = StoredRows(layout_of(NVFP4), INPUTS, stored.reshape(rows, -1))
    return made if factor is None else multiplied(made, np.float32(factor))


@pytest.mark.parametrize("factors", [[None], [0.37], [0.37, None, 0.011]])
def test_values_are_those_of_the_blocks(factors: list[float | None]) -> None:
    parts = [blocks(30 + number, factor, number) for number, factor in enumerate(factors)]
    packer = Packer(_native.Team(2, False), "auto")
    expected = np.concatenate([part.floats() for part in parts])
    (piece,) = packer.matrix(parts, Linear(INPUTS, len(expected))).pieces
    packer.finish()
    assert piece.native.format == _native.Format.NVFP4By16
    got = np.stack([piece.native.row(row) for row in range(len(expected))])
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert np.count_nonzero(expected) > expected.size // 2


def test_gates_and_ups_have_their_own_factors() -> None:
    parts = [blocks(20, 0.5, 1), blocks(20, 2.0, 2)]
    packer = Packer(_native.Team(2, False), "auto")
    (piece,) = packer.matrix(parts, GateUpLinear(INPUTS, 20)).pieces
    packer.finish()
    gate, up = (part.floats() for part in parts)
    for row, expected in ((0, gate[0]), (16, up[0]), (32, gate[16])):
        np.testing.assert_allclose(piece.native.row(row), expected, rtol=1e-6)


def test_factors_for_other_formats_are_refused() -> None:
    store, rows = _native.Store(_native.Team(1, False)), np.zeros(2, np.uint64)
    stored, format_ = _native.Stored.Q8_0, _native.Format.U8
    with pytest.raises(ValueError, match="scales of outputs"):
        store.pack(stored, format_, 32, rows, rows, [], [], np.ones(2, np.float32))
