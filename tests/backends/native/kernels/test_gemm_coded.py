"""Products with codes that stand for floats: their meaning, and equal bits in every batch."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from octavo.backends.native import _native
from tests.backends.native import _native_test
from tests.backends.native.kernels.coded_rows import (
    FORMATS,
    coded_blocks,
    coded_matrix,
    layout_of,
    pack_coded,
)
from tests.backends.native.kernels.gemm_cases import (
    ROW_COUNTS,
    TIERS,
    Floats,
    bits,
    check_panel_splits,
    check_places,
    check_rows_alone,
    multiply,
    rounding_bound,
    unpack,
)
from tests.backends.native.kernels.test_gemm_float import BF16_TIERS

INPUTS = 384
# Of values of codes that are no bf16 numbers, the largest error as a share of the scale; FP4 loses
# two roundings of the scale alone.
LOSSES = {"NF4By64": 0.00065, "FP4By64": 2.0**-23}
SMALLEST = 2.0**-149  # number above zero; a factor between table and scale loses some of these

every_tier = pytest.mark.parametrize("tier", TIERS)
every_format = pytest.mark.parametrize("name", FORMATS)


def numbers(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# ---- packing ----


@every_tier
@pytest.mark.parametrize("scale", [1e-42, 0.01, 1e30])  # 1e-42 is denormal
@every_format
def test_weights_are_what_was_stored(name: str, scale: float, tier: str) -> None:
    stored = coded_blocks(name, 45, INPUTS, scale)
    got = unpack(tier, pack_coded(name, stored, INPUTS))
    expected = layout_of(name).decode(stored)
    if name in LOSSES:
        limit = LOSSES[name] * scale + 16 * SMALLEST
        assert (np.abs(got.astype(np.float64) - expected) <= limit).all()
    else:
        np.testing.assert_array_equal(got, expected)


@every_tier
def test_a_scale_that_divides_is_taken_as_its_inverse(tier: str) -> None:
    """Rounding it costs less than the decoded values' own roundings."""
    name = "NVFP4DividedBy16"
    stored = coded_blocks(name, 45, INPUTS, 3000.0)
    expected = layout_of(name).decode(stored)
    got = unpack(tier, pack_coded(name, stored, INPUTS))
    np.testing.assert_allclose(got, expected, rtol=2.0**-22, atol=0)


@every_tier
def test_every_e4m3_number_is_kept(tier: str) -> None:
    """Products with rows that have a single one give each number, those below 2^-6 too."""
    codes = np.array([code for code in range(256) if code & 0x7F != 0x7F], np.uint8)
    row = np.zeros((1, 2, 132), np.uint8)
    row[..., :4] = np.ones(1, np.float32).view(np.uint8)
    row[0, :, 4:] = np.resize(codes, (2, 128))
    matrix = pack_coded("F8By128", row.reshape(1, -1), 256)
    values = row[0, :, 4:].reshape(-1).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert len(np.unique(values)) == 253  # zero has two codes
    np.testing.assert_array_equal(unpack(tier, matrix)[0], values)
    for count in (1, 256):  # rows that are decoded as they are multiplied, and before
        got = multiply(tier, matrix, np.eye(256, dtype=np.float32)[:count] * 2)
        np.testing.assert_array_equal(got[:, 0], values[:count] * 2)
    got = np.concatenate([multiply(tier, matrix, row[None]) for row in np.eye(256, dtype="f4")])
    np.testing.assert_array_equal(got[:, 0], values)


@every_format
def test_missing_rows_are_zeros(name: str) -> None:
    stored = coded_blocks(name, 3, INPUTS, 0.1)
    number = getattr(_native.Stored, name).value
    matrix = _native_test.pack(name, number, [stored[0], None, stored[2]], INPUTS)
    assert not unpack(TIERS[-1], matrix)[1].any()
    assert not multiply(TIERS[-1], matrix, numbers(0, 2, INPUTS))[:, 1].any()


@pytest.mark.parametrize(
    ("name", "bits_of_weight"),
    [("F8By32", 9.0), ("F8By128", 8.25), ("NF4By64", 4.5), ("NVFP4By16", 4.5 + 1 / 32)],
)
def test_weights_take_as_much_room_as_their_scales_need(name: str, bits_of_weight: float) -> None:
    assert coded_matrix(name, 64, 1024).num_bytes == 64 * 1024 * bits_of_weight / 8


@every_format
def test_rows_that_are_no_whole_groups_are_refused(name: str) -> None:
    group = layout_of(name).group
    with pytest.raises(ValueError, match="are not a multiple"):
        pack_coded(name, np.zeros((1, 4096), np.uint8), 1024 + group // 2)
    number, row = getattr(_native.Stored, name).value, coded_blocks(name, 1, 128, 0.1)[0]
    with pytest.raises(ValueError, match="cannot be packed"):
        _native_test.pack("U8", number, [row], 128)


# ---- products ----


@every_tier
@every_format
def test_products_are_those_of_the_decoded_weights(name: str, tier: str) -> None:
    matrix, x = coded_matrix(name, 70), numbers(1, 17, INPUTS)
    weights = unpack(tier, matrix).astype(np.float64)
    got = multiply(tier, matrix, x)
    seen = x.astype(ml_dtypes.bfloat16).astype(np.float64)
    # One rounding for each input and group, and that of the decoded weight.
    steps = INPUTS + INPUTS // layout_of(name).group + 2
    limit = rounding_bound(np.abs(seen) @ np.abs(weights).T, steps)
    assert (np.abs(got - seen @ weights.T) <= limit).all()


@every_format
def test_tiers_of_one_order_give_equal_bits(name: str) -> None:
    matrix = coded_matrix(name, 70)
    tiers = [tier for tier in TIERS if tier not in BF16_TIERS]
    first, *others = (bits(multiply(tier, matrix, numbers(2, 13, INPUTS))) for tier in tiers)
    for other in others:
        np.testing.assert_array_equal(other, first)


@every_tier
@every_format
def test_not_a_number_stays_in_its_row_and_output(name: str, tier: str) -> None:
    """A code of NaN makes its group NaN, and so does a scale; an input makes its row so."""
    group_bytes = layout_of(name).group_bytes
    stored, x = coded_blocks(name, 40, INPUTS, 0.1), numbers(3, 5, INPUTS)
    groups = stored.reshape(40, -1, group_bytes)
    is_small = name.startswith("NVFP4")  # scales of groups, beside one for all
    groups[7, : 1 if is_small else 2, :4] = np.full(1, np.nan, np.float32).view(np.uint8)
    wrong = [7]
    if name.startswith("F8") or is_small:
        groups[9, 1, 4] = 0xFF  # a code of E4M3, or a scale
        wrong.append(9)
    x[2, 0] = np.inf
    got = np.isfinite(multiply(tier, pack_coded(name, stored, INPUTS), x))
    assert not got[:, wrong].any()
    assert not got[2].any()
    assert got[np.ix_([0, 1, 3, 4], [i for i in range(40) if i not in wrong])].all()


@every_tier
@every_format
def test_a_row_has_equal_bits_among_any_number_of_rows(name: str, tier: str) -> None:
    check_rows_alone(tier, coded_matrix(name, 35), numbers(4, max(ROW_COUNTS), INPUTS))


@every_tier
@every_format
def test_a_row_has_equal_bits_at_every_place(name: str, tier: str) -> None:
    check_places(tier, coded_matrix(name, 33, 128), numbers(5, 128), (2, 5, 12, 13, 25, 100))


@every_tier
@every_format
def test_a_row_has_equal_bits_over_several_runs_of_groups(name: str, tier: str) -> None:
    matrix, x = coded_matrix(name, 33, 1280), numbers(6, 14, 1280)
    together = bits(multiply(tier, matrix, x))
    for row in (0, 13):
        np.testing.assert_array_equal(
            bits(multiply(tier, matrix, x[row : row + 1]))[0], together[row]
        )


@every_tier
@every_format
def test_cutting_panels_among_threads_changes_nothing(name: str, tier: str) -> None:
    check_panel_splits(tier, coded_matrix(name, 161), numbers(7, 15, INPUTS))
