"""What the KV cache keeps in few bits: the nearest codes, which kernels read exactly."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.backends.native import _native_test
from tests.backends.native.kernels.kept_numbers import (
    FLOAT8,
    FORMATS,
    Doubles,
    float8_values,
    kept,
    mixed,
)

TABLE = np.zeros(1, np.int32)
SMALL = FORMATS[2:]
TIERS = _native_test.tiers()


def codes_of(kind: str, cells: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the codes of pairs."""
    if kind == "int4":
        return np.stack((cells & 15, cells >> 4), axis=-1)
    return cells.reshape(*cells.shape[:-1], -1, 2)


def numbers_of(kind: str, codes: NDArray[np.uint8]) -> Doubles:
    """Return the numbers that codes stand for."""
    if kind in FLOAT8:
        return np.where(codes < 128, 1.0, -1.0) * float8_values(kind)[codes & 0x7F]
    numbers = (codes ^ 8).astype(np.int8) - 8 if kind == "int4" else codes.view(np.int8)
    return numbers.astype(np.float64)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("kind", SMALL)
def test_the_nearest_codes_are_kept(tier: str, kind: str) -> None:
    """Zeros, huge rows, and rows so small that their scale would vanish keep to the bound too."""
    rows = np.random.default_rng(9).normal(0, 1, (16, 16)).astype(np.float32)
    rows[3] = 0
    rows[4] *= np.float32(1e36)
    rows[5] *= np.float32(1e-39)
    rows[6, 1:] *= np.float32(1e-4)  # beside a large one: the smallest codes of all
    cache = _native_test.TestCache(tier, kind, 1, 16, 2, 8)
    cache.write(rows, -rows, 0, 16, 0, TABLE)
    # Of each head first the keys and then the values of 16 tokens.
    scales = cache.scales().reshape(2, 2, 16, 1).astype(np.float64)
    numbers = numbers_of(kind, codes_of(kind, cache.cells().reshape(2, 2, -1)))
    keys = numbers[:, 0].reshape(2, 4, 16, 2).transpose(0, 2, 1, 3).reshape(2, 16, 8)
    values = numbers[:, 1].reshape(2, 8, 8, 2).transpose(0, 1, 3, 2).reshape(2, 16, 8)
    truth = mixed(rows, 8).astype(np.float32) if kind == "int4" else rows
    for found, which, expected in ((keys, 0, truth), (values, 1, -rows)):
        exact = kept(kind, expected, 8).reshape(16, 2, 8).transpose(1, 0, 2)
        read = found * scales[:, which]
        others = np.arange(16) != 5
        assert np.array_equal(read[:, others], exact[:, others])
        most = float8_values(kind)[-1] if kind in FLOAT8 else 127
        assert np.abs(read[:, 5] - exact[:, 5]).max() <= 1.2e-38 * most


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("kind", SMALL)
def test_every_code_is_read_exactly(tier: str, kind: str) -> None:
    """The only position that a query sees has the weight 1."""
    if kind in FLOAT8:
        count = len(float8_values(kind))
        codes = np.concatenate([np.arange(count), 128 + np.arange(count)]).astype(np.uint8)
    else:
        codes = np.arange(16 if kind == "int4" else 256).astype(np.uint8)
    size = -(-len(codes) // 8) * 8
    codes = np.resize(codes, size)
    cache = _native_test.TestCache(tier, kind, 1, 16, 1, size)
    cells = cache.cells()
    values = cells[len(cells) // 2 :]
    if kind == "int4":
        values[:size] = codes | 0x90  # the next token's
    else:
        values[: 2 * size : 2] = codes
    cache.scales()[:] = 1
    q, out = np.ones((1, size), np.float32), np.zeros((1, size), np.float32)
    _native_test.attend(cache, q, out, 1, 1.0, 0.0, 0, None, [0], [1], [0], [TABLE], 1, 1)
    assert np.array_equal(out[0], numbers_of(kind, codes))


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("kind", SMALL)
def test_a_token_that_is_written_alone_leaves_its_neighbour(tier: str, kind: str) -> None:
    rows = np.random.default_rng(3).normal(0, 1, (16, 24)).astype(np.float32)
    whole = _native_test.TestCache(tier, kind, 1, 16, 1, 24)
    whole.write(rows, rows, 0, 16, 0, TABLE)
    for order in (range(16), range(15, -1, -1)):
        single = _native_test.TestCache(tier, kind, 1, 16, 1, 24)
        single.cells()[:] = 0xFF
        for token in order:
            single.write(rows, rows, token, 1, token, TABLE)
        assert np.array_equal(single.cells(), whole.cells())
        assert np.array_equal(single.scales(), whole.scales())
