"""Products with F32, F16 and BF16 matrices against float64, and their equal bits in every batch."""

import math

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from tests.backends.native import _native_test
from tests.backends.native.kernels.gemm_cases import (
    ROW_COUNTS,
    TIERS,
    Doubles,
    Floats,
    Stored,
    bits,
    check_panel_splits,
    check_places,
    check_rows_alone,
    multiply,
    pack,
    rounding_bound,
    unpack,
)

GGUF_TYPES = {"F32": 0, "F16": 1, "BF16": 30}
DTYPES: dict[str, npt.DTypeLike] = {
    "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
}  # fmt: skip
FORMATS = list(DTYPES)
# Their instructions multiply pairs of bf16 numbers, each in an order of its own.
BF16_TIERS = ("avx512bf16", "neonbf16", "amx", "amx_emulated")
SHAPES = [(1, 1), (3, 2), (31, 3), (32, 16), (33, 31), (65, 64), (64, 65), (100, 577)]

every_tier = pytest.mark.parametrize("tier", TIERS)
every_format = pytest.mark.parametrize("format_name", FORMATS)


def stored(weights: npt.NDArray[np.generic], type_name: str) -> Stored:
    kept = np.ascontiguousarray(weights.astype(DTYPES[type_name]))
    raw = kept.view(np.uint8).reshape(len(kept), -1)
    return Stored(GGUF_TYPES[type_name], list(raw), weights.shape[1])


def numbers(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def matrix_of(format_name: str, weights: Floats) -> _native_test.PackedMatrix:
    return pack(format_name, stored(weights, format_name))


def exact(format_name: str, weights: Floats, x: Floats) -> tuple[Doubles, Doubles]:
    """Return the product and Σ|w·x| in float64, of the operands as the format stores them."""
    w = weights.astype(DTYPES[format_name]).astype(np.float64)
    inputs = x.astype(ml_dtypes.bfloat16) if format_name == "BF16" else x
    wide = inputs.astype(np.float64)
    return wide @ w.T, np.abs(wide) @ np.abs(w).T


# ---- packing ----


@pytest.mark.parametrize("type_name", FORMATS)
@every_format
@every_tier
def test_unpacked_rows_are_the_stored_ones_rounded(
    tier: str, format_name: str, type_name: str
) -> None:
    weights = numbers(1, 45, 131).astype(DTYPES[type_name])
    matrix = pack(format_name, stored(weights, type_name))
    expected = weights.astype(np.float32).astype(DTYPES[format_name]).astype(np.float32)
    np.testing.assert_array_equal(bits(unpack(tier, matrix)), bits(expected))


@pytest.mark.parametrize("type_name", ["F16", "BF16"])
@every_tier
def test_every_16_bit_number_is_kept(tier: str, type_name: str) -> None:
    every = np.arange(2**16, dtype=np.uint16).view(DTYPES[type_name]).reshape(64, 1024)
    matrix = pack(type_name, Stored(GGUF_TYPES[type_name], list(every.view(np.uint8)), 1024))
    with np.errstate(invalid="ignore"):  # signalling NaNs are among them
        got, expected = unpack(tier, matrix), every.astype(np.float32)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(bits(got)[~nan], bits(expected)[~nan])


@pytest.mark.parametrize("format_name", ["F16", "BF16"])
def test_rounding_is_to_nearest_even_everywhere(format_name: str) -> None:
    """Random fp32 bits are rounded to even, and so are the midpoints of the format's numbers."""
    generator = np.random.default_rng(2)
    any_bits = generator.integers(0, 2**32, 60_000, dtype=np.uint32)
    with np.errstate(invalid="ignore"):  # signalling NaNs are among them
        every = np.arange(2**16, dtype=np.uint16).view(DTYPES[format_name]).astype(np.float32)
    every = every[np.isfinite(every)]
    every.sort()
    middles = (every[:-1].astype(np.float64) + every[1:]) / 2
    middles32 = middles.astype(np.float32)
    values = np.concatenate(
        [any_bits.view(np.float32), middles32, np.nextafter(middles32, np.float32(np.inf)),
         np.nextafter(middles32, np.float32(-np.inf))]
    )  # fmt: skip
    values = values[: len(values) // 64 * 64]
    weights = values.reshape(64, -1)
    matrix = pack(format_name, stored(weights, "F32"))
    with np.errstate(over="ignore", invalid="ignore"):
        expected = weights.astype(DTYPES[format_name]).astype(np.float32)
    got = unpack(TIERS[0], matrix)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(bits(got)[~nan], bits(expected)[~nan])


def test_absent_rows_are_zeros() -> None:
    kept = stored(numbers(3, 40, 10), "F32")
    rows = [None if i in (5, 39) else row for i, row in enumerate(kept.rows)]
    got = unpack(TIERS[-1], pack("BF16", Stored(kept.type, rows, 10)))
    assert not got[[5, 39]].any()
    assert got[[4, 6, 38]].all()


def test_what_cannot_be_packed_is_told() -> None:
    rows = [np.zeros(8, np.uint8)]
    with pytest.raises(ValueError, match="has 12 bytes, not 8"):
        _native_test.pack("F32", 0, rows, 3)
    with pytest.raises(ValueError, match="no format 'F8'"):
        _native_test.pack("F8", 0, rows, 2)
    with pytest.raises(ValueError, match="at least one row"):
        _native_test.pack("F32", 0, [], 2)
    with pytest.raises(ValueError, match="stored type 99"):
        _native_test.pack("F32", 99, rows, 2)


# ---- products ----


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@every_format
@every_tier
def test_product(tier: str, format_name: str, outputs: int, inputs: int) -> None:
    weights, x = numbers(4, outputs, inputs), numbers(5, 17, inputs)
    got = multiply(tier, matrix_of(format_name, weights), x)
    product, terms = exact(format_name, weights, x)
    # A fused step rounds once; vdpbf16ps rounds each of a pair's two sums.
    assert (np.abs(got - product) <= rounding_bound(terms, inputs + 1)).all()


@every_tier
def test_product_over_several_chunks(tier: str) -> None:
    """Sums are stored and continued if there are more inputs than one pass takes."""
    weights, x = numbers(6, 33, 9001), numbers(7, 14, 9001)
    for format_name in FORMATS:
        matrix = matrix_of(format_name, weights)
        got = multiply(tier, matrix, x)
        product, terms = exact(format_name, weights, x)
        assert (np.abs(got - product) <= rounding_bound(terms, 9002)).all()
        np.testing.assert_array_equal(bits(multiply(tier, matrix, x[3:4])), bits(got[3:4]))


@pytest.mark.parametrize("format_name", ["F32", "F16"])
def test_all_tiers_give_equal_bits_where_inputs_stay_fp32(format_name: str) -> None:
    matrix = matrix_of(format_name, numbers(8, 70, 129))
    results = [bits(multiply(tier, matrix, numbers(9, 13, 129))) for tier in TIERS]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_tiers_that_widen_bf16_give_equal_bits() -> None:
    matrix = matrix_of("BF16", numbers(8, 70, 129))
    tiers = [tier for tier in TIERS if tier not in BF16_TIERS]
    results = [bits(multiply(tier, matrix, numbers(9, 13, 129))) for tier in tiers]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@every_format
@every_tier
def test_not_a_number_stays_in_its_row_and_output(tier: str, format_name: str) -> None:
    weights, x = numbers(10, 40, 33), numbers(11, 5, 33)
    weights[7, 32] = np.nan
    x[2, 0] = np.inf
    got = multiply(tier, matrix_of(format_name, weights), x)
    finite = np.isfinite(got)
    assert not finite[:, 7].any()
    assert not finite[2].any()
    assert finite[np.ix_([0, 1, 3, 4], [i for i in range(40) if i != 7])].all()


# ---- the law ----


@every_format
@every_tier
def test_a_row_has_equal_bits_among_any_number_of_rows(tier: str, format_name: str) -> None:
    matrix = matrix_of(format_name, numbers(12, 35, 67))
    check_rows_alone(tier, matrix, numbers(13, max(ROW_COUNTS), 67))


@every_format
@every_tier
def test_a_row_has_equal_bits_at_every_place(tier: str, format_name: str) -> None:
    matrix = matrix_of(format_name, numbers(14, 33, 19))
    check_places(tier, matrix, numbers(15, 19), (2, 3, 5, 8, 12, 13, 25, 40, 100))


@every_format
@every_tier
def test_cutting_panels_among_threads_changes_nothing(tier: str, format_name: str) -> None:
    matrix = matrix_of(format_name, numbers(16, 161, 50))
    check_panel_splits(tier, matrix, numbers(17, 15, 50))


# ---- what tests may not do ----


def test_arguments_that_do_not_fit_are_refused() -> None:
    tier = TIERS[0]
    matrix = matrix_of("F32", numbers(18, 40, 16))
    x = numbers(19, 3, 16)
    with pytest.raises(ValueError, match="out has too few columns: 40"):
        multiply(tier, matrix, x, columns=39)
    with pytest.raises(ValueError, match="out has too few rows"):
        multiply(tier, matrix, x, out=np.zeros((2, 40), np.float32))
    with pytest.raises(ValueError, match="within 0 and 2"):
        multiply(tier, matrix, x, end_panel=3)
    with pytest.raises(ValueError, match="prepared for another"):
        multiply(tier, matrix, numbers(20, 3, 64))
    with pytest.raises(ValueError, match="no ups"):
        multiply(tier, matrix, x, gated=True)
    with pytest.raises(ValueError, match="does not run the instruction set 'z80'"):
        multiply("z80", matrix, x)
    assert math.isfinite(multiply(tier, matrix, x).sum())
