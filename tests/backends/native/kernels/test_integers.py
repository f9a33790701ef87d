"""Integers of safetensors, packed at their own size."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.backends.native import _native
from octavo.quant.integers import kind_of
from tests.backends.native import _native_test
from tests.backends.native.kernels.integer_rows import (
    FORMATS,
    integer_blocks,
    integer_kind,
    pack_integers,
    values_of,
)
from tests.backends.native.kernels.test_gemm_quantized import TIERS, unpacked

INPUTS = 512


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("scale", [1e-7, 0.01, 100.0])  # 1e-7: denormal as fp16
@pytest.mark.parametrize("name", FORMATS)
def test_weights_are_what_was_stored(name: str, scale: float, tier: str) -> None:
    """Zero points of every second row are no whole numbers, so that two products are rounded."""
    stored = integer_blocks(name, 45, INPUTS, scale)
    weights, expected = (
        unpacked(tier, pack_integers(name, stored, INPUTS)),
        values_of(name, stored, INPUTS),
    )
    np.testing.assert_array_equal(weights[1::2], expected[1::2])
    room = scale * 2.0 ** (integer_kind(name, INPUTS).bits - 23) if "Zero" in name else 0
    np.testing.assert_allclose(weights[::2], expected[::2], rtol=0, atol=room)


@pytest.mark.parametrize("name", FORMATS)
def test_missing_rows_are_zeros(name: str) -> None:
    stored = list(integer_blocks(name, 3, INPUTS, 0.1))
    number = getattr(_native.Stored, name).value
    matrix = _native_test.pack(FORMATS[name], number, [stored[0], None, stored[2]], INPUTS)
    assert not unpacked(TIERS[-1], matrix)[1].any()


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("I4By128", 4.125),
        ("I4ZeroBy128", 4.25),
        ("I4ZeroBy64", 4.5),
        ("I8By128", 8.125),
        ("I8ZeroBy128", 8.25),
        ("I4MidBy128", 4.25),
        ("I3ZeroBy128", 3.25),
        ("I2ZeroBy64", 2.5),
        ("I8Wide", 8.125),
    ],
)
def test_weights_take_as_much_room_as_their_scales_need(name: str, bits: float) -> None:
    """A zero point takes two bytes, where a file has half of one or a whole one."""
    stored = integer_blocks(name, 64, 1024, 0.1)
    assert pack_integers(name, stored, 1024).num_bytes * 8 == 64 * 1024 * bits


@pytest.mark.parametrize("name", FORMATS)
def test_rows_that_are_no_whole_groups_are_refused(name: str) -> None:
    group = integer_kind(name, INPUTS).group
    with pytest.raises(ValueError, match="are not a multiple"):
        pack_integers(name, np.zeros((1, 4096), np.uint8), 1024 + group // 2)


def test_the_native_engine_has_a_type_for_each_kind() -> None:
    names = {
        kind_of(bits, 1024, group, is_symmetric=is_symmetric, takes_int8=takes_int8).name
        for bits in range(1, 9)
        for group in (None, 32, 64, 96, 128, 256)
        for is_symmetric in (True, False)
        for takes_int8 in (True, False)
    } | {
        kind_of(4, 1024, group, is_symmetric=False, zeros_are_values=True).name
        for group in (32, 64, 128)
    }
    assert names == set(FORMATS)
    assert all(hasattr(_native.Stored, name) for name in FORMATS)
