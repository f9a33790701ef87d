"""Products by tile registers: the order of their sums, denormal numbers, the self-test at load.

Where the processor has no tiles, they are arrays with what the architecture manual says of each
instruction. The other tests of products run over this tier like over every other one.
"""

from __future__ import annotations

import ctypes

import ml_dtypes
import numpy as np
import pytest

from tests.backends.native import _native_test
from tests.backends.native.kernels.gemm_cases import TIERS, Floats, Stored, bits, multiply, pack

BF16 = 30
STEP = 32  # inputs that an instruction adds up
SMALLEST = np.float32(2.0**-126)  # the smallest number that is not denormal
FMA = ctypes.CDLL(None).fmaf  # of the C library; Python has none before 3.13
FMA.argtypes, FMA.restype = [ctypes.c_float] * 3, ctypes.c_float
TILED = [tier for tier in TIERS if tier.startswith("amx")]

every_tiled = pytest.mark.parametrize("tier", TILED)


def fused(a: float, b: float, c: float) -> float:
    """Return a · b + c, rounded once to fp32."""
    return float(FMA(a, b, c))


def flushed(value: float) -> float:
    return value if abs(value) >= SMALLEST else 0.0


def added(a: float, b: float) -> float:
    return flushed(float(np.float32(a) + np.float32(b)))


def sum_in_order(row: Floats, weights: Floats) -> float:
    """Return a product as the manual's text on `tdpbf16ps` has it, written independently."""
    total = 0.0
    for first in range(0, len(row), STEP):
        parts = [0.0, 0.0]
        for i in range(first, min(first + STEP, len(row))):
            x, w = flushed(float(row[i])), flushed(float(weights[i]))
            parts[i % 2] = flushed(fused(x, w, parts[i % 2]))
        total = added(total, added(*parts))
    return total


def rounded(numbers: Floats) -> Floats:
    return numbers.astype(ml_dtypes.bfloat16).astype(np.float32)


def numbers_of_any_size(seed: int, rows: int, inputs: int, middle: int) -> Floats:
    generator = np.random.default_rng(seed)
    exponents = generator.integers(middle - 12, middle + 12, (rows, inputs))
    return rounded(np.ldexp(generator.uniform(-1, 1, (rows, inputs)), exponents).astype(np.float32))


# ---- the order ----


@pytest.mark.parametrize("num_rows", [1, 3, 4, 16, 21])
@pytest.mark.parametrize("inputs", [1, 31, 64, 101])
@pytest.mark.parametrize(("of_rows", "of_weights"), [(0, 0), (-60, -62), (-126, 2)])
@every_tiled
def test_bf16_products_are_added_up_in_the_order_of_the_manual(
    tier: str, num_rows: int, inputs: int, of_rows: int, of_weights: int
) -> None:
    """Products or numbers that are denormal count as zero."""
    x = numbers_of_any_size(1, num_rows, inputs, of_rows)
    weights = numbers_of_any_size(2, 3, inputs, of_weights)
    stored = weights.astype(ml_dtypes.bfloat16).view(np.uint8)
    got = multiply(tier, pack("BF16", Stored(BF16, list(stored), inputs)), x)
    expected = [[sum_in_order(row, each) for each in weights] for row in x]
    np.testing.assert_array_equal(got, np.array(expected, np.float32))


@every_tiled
def test_denormal_numbers_survive_where_no_tile_is_used(tier: str) -> None:
    """The rules of the thread are those of before, and fp32 products go by them."""
    tiny = np.full((1, 2), 1e-40, np.float32)
    ones = np.ones((1, 2), np.float32)
    by_bf16 = pack("BF16", Stored(BF16, list(ones.astype(ml_dtypes.bfloat16).view(np.uint8)), 2))
    by_fp32 = pack("F32", Stored(0, list(ones.view(np.uint8)), 2))
    assert multiply(tier, by_bf16, tiny)[0, 0] == 0
    for rows in (1, 8):
        multiply(tier, by_bf16, np.ones((rows, 2), np.float32))
        product = multiply(tier, by_fp32, tiny)
        np.testing.assert_array_equal(bits(product), bits(tiny[:, :1] + tiny[:, 1:]))


# ---- the self-test ----


@pytest.mark.parametrize("tier", TIERS[1:])
def test_kernels_that_keep_the_law_pass_the_self_test(tier: str) -> None:
    assert _native_test.wrong_products(tier, tier) == ""


@pytest.mark.parametrize(
    ("format_number", "numbers"), [(2, "bf16 numbers"), (3, "integers"), (16, "integers")]
)
@every_tiled
def test_one_wrong_bit_fails_the_self_test(tier: str, format_number: int, numbers: str) -> None:
    wrong = _native_test.wrong_products(tier, tier, spoiled=format_number)
    assert wrong.startswith(f"its products of {numbers} (format {format_number})")


@every_tiled
def test_another_order_of_sums_fails_the_self_test(tier: str) -> None:
    assert "bf16" in _native_test.wrong_products(tier, "avx512bf16")
    assert "bf16" in _native_test.wrong_products("avx512bf16", tier)
