"""Products with matrices of codes: their meaning, and equal bits of a row in every batch."""

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.loader.blocks.decoders import LAYOUTS
from octavo.loader.dequantize import dequantize
from octavo.loader.gguf import types as gguf_types
from octavo.loader.tensor_type import TensorType
from tests.backends.native import _native_test
from tests.backends.native._native_test import PackedMatrix
from tests.backends.native.kernels.integer_rows import ZERO_POINTS, integer_blocks, pack_integers

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

F32, F16, BF16 = 0, 1, 30
CODES = {kind.name: code for code, kind in gguf_types.TENSOR_TYPES.items()}
FORMATS = {
    "Q4_0": "U4",
    "Q4_1": "U4Min",
    "Q5_0": "U5",
    "Q5_1": "U5Min",
    "Q8_0": "U8",
    "Q4_K": "U4K",
    "Q5_K": "U5K",
    "Q6_K": "U6",
    "IQ4_NL": "Table4",
    "MXFP4": "Mx4",
    "Q2_K": "U2K",
    "TQ2_0": "U2By256",
    "Q2_0": "U2By64",
}
# Types that are kept in a larger format with the same values, and the bits a weight that it takes.
LARGER = {
    "Q3_K": ("U3K", 3.5625),
    "IQ4_XS": ("Table4K", 4.3125),
    "IQ3_S": ("Table4S", 4.3125),
    "IQ3_XXS": ("Table4Xxs", 4.3125),
    "IQ2_S": ("Table3Iq2", 3.5625),
    "IQ2_XS": ("Table3Iq2", 3.5625),
    "IQ2_XXS": ("Table3Iq2", 3.5625),
    "IQ1_M": ("Table3Iq1", 3.5625),
    "IQ1_S": ("Table3Iq1", 3.5625),
    "TQ1_0": ("U2By256", 2.0625),
    "Q1_0": ("U2By128", 2.125),
}
KEPT = FORMATS | {name: format_name for name, (format_name, _) in LARGER.items()}
# A stored type for each format; of those that share kernels, one.
ONE_EACH = {
    **{format_name: name for name, format_name in FORMATS.items()},
    **{KEPT[name]: name for name in ("Q3_K", "IQ2_XS", "IQ1_M", "IQ4_XS", "IQ3_XXS")},
}
MADE = ("U8", "U8By64", "U8By128", "U8Wide", "U4", "U4By64", "U4By128")  # of floats, at load
GROUPS = {"U8By64": 64, "U8By128": 128, "U4By64": 64, "U4By128": 128, "U8Wide": 128}  # others: 32
ALL = (*ONE_EACH, *GROUPS, *ZERO_POINTS)
TIERS = _native_test.tiers()
GROUP = 32
# Where a prepared group has its scale, and the sums behind it.
SCALE_AT, SUM_AT, STARTS_AT = 32, 36, 40


def kind_of(name: str) -> TensorType:
    return gguf_types.TENSOR_TYPES[CODES[name]]


def random_blocks(name: str, outputs: int, inputs: int, scale: float, seed: int = 0) -> Bytes:
    """Return rows of blocks with random codes, and scales around `scale` of either sign."""
    kind = kind_of(name)
    generator = np.random.default_rng(seed)
    shape = (outputs, inputs // kind.block_elements, kind.block_bytes)
    stored = generator.integers(0, 256, shape, np.uint8)
    blocks = stored.reshape(-1).view(LAYOUTS[name])
    if name == "MXFP4":
        middle = 127 + round(np.log2(scale))
        blocks["exponent"] = generator.integers(middle - 3, middle + 4, len(blocks))
        return stored.reshape(outputs, -1)
    if name == "IQ1_M":  # the scale's nibbles are the highest of four words
        shifts = np.arange(0, 16, 4, dtype=np.uint16)
        words = np.full((len(blocks), 1), scale, np.float16).view(np.uint16) >> shifts
        blocks["scales"] = blocks["scales"] & 0x0FFF | words << 12
    for field in ("scale", "minimum"):
        if field in (blocks.dtype.names or ()):
            signs = generator.choice([-1.0, 1.0], len(blocks))
            blocks[field] = signs * scale * generator.uniform(0.5, 1.0, len(blocks))
    return stored.reshape(outputs, -1)


def packed(name: str, stored: Bytes, inputs: int) -> PackedMatrix:
    return _native_test.pack(KEPT[name], CODES[name], list(stored), inputs)


def matrix_in(format_name: str, outputs: int, scale: float = 0.05) -> PackedMatrix:
    """Return some matrix of a format; its last block is not full if the format allows it."""
    if format_name in ZERO_POINTS:
        name, inputs = ZERO_POINTS[format_name], 768
        return pack_integers(name, integer_blocks(name, outputs, inputs, scale), inputs)
    if format_name in GROUPS:
        values = np.random.default_rng(4).standard_normal((outputs, 800)).astype(np.float32) * scale
        return _native_test.pack(
            format_name, F32, list(values.astype(np.float32).view(np.uint8)), 800
        )
    name = ONE_EACH[format_name]
    inputs = 800 if kind_of(name).block_elements == 32 else 768
    return packed(name, random_blocks(name, outputs, inputs, scale), inputs)


def unpacked(tier: str, matrix: PackedMatrix) -> Floats:
    rows = np.empty((matrix.outputs, matrix.inputs), np.float32)
    for output, row in enumerate(rows):
        _native_test.unpack_row(tier, matrix, output, row)
    return rows


def product(
    tier: str,
    matrix: PackedMatrix,
    x: Floats,
    first_panel: int = 0,
    end_panel: int = -1,
) -> Floats:
    out = np.full((len(x), matrix.outputs), np.nan, np.float32)
    prepared = _native_test.prepare(tier, matrix.format, np.ascontiguousarray(x))
    _native_test.gemm(tier, matrix, prepared, out, first_panel=first_panel, end_panel=end_panel)
    return out


def rounded(x: Floats, group: int = GROUP) -> tuple[Floats, Floats]:
    """Return the int8 codes and the scales of rows, as the engine defines them.

    A last group that is not full is filled with zeros.
    """
    groups = np.pad(x, ((0, 0), (0, -x.shape[1] % group))).reshape(len(x), -1, group)
    scales = (np.abs(groups).max(-1, keepdims=True) / np.float32(127)).astype(np.float32)
    with np.errstate(all="ignore"):
        codes = np.where(scales > 0, np.rint(groups / scales), np.float32(0))
    return np.clip(codes, -127, 127).astype(np.float32), scales


def activations(rows: int, inputs: int, seed: int = 1) -> Floats:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((rows, inputs)).astype(np.float32)
    x *= np.exp(generator.normal(0, 2, (rows, 1))).astype(np.float32)
    x[:, : inputs // 8] *= np.float32(30)  # a few channels are much larger, as in models
    return x


# ---- activations ----


@pytest.mark.parametrize("tier", TIERS)
def test_rows_are_rounded_to_int8_by_groups(tier: str) -> None:
    x = activations(7, 96)
    x[1, 32:64] = 0
    x[2, :32] = np.float32(1e-44)  # a scale that is denormal, or vanishes
    x[3, :32] = np.linspace(-1, 1, 32) * np.float32(1e-43)
    x[4, :32] = np.linspace(-1, 1, 32) * np.float32(3e38)
    x[5, :32] = np.r_[np.float32(127), np.arange(31) - 15.5]  # ties go to even
    prepared = _native_test.prepare(tier, "U8", x).reshape(7, 3, 64)
    codes, scales = rounded(x)
    np.testing.assert_array_equal(prepared[..., :GROUP].view(np.int8), codes)
    floats = prepared[..., SCALE_AT:STARTS_AT].view(np.float32)
    np.testing.assert_array_equal(floats[..., 0], scales[..., 0])
    np.testing.assert_array_equal(floats[..., 1], scales[..., 0] * codes.sum(-1))
    starts = prepared[..., STARTS_AT:].view(np.int32)
    sums = codes.sum(-1).astype(np.int32)
    halves = codes.reshape(7, 3, 2, 16).sum(-1).astype(np.int32)
    for index, offset in enumerate((8, 16, 128)):
        np.testing.assert_array_equal(starts[..., index], -offset * sums)
    np.testing.assert_array_equal(starts[..., 3:5], -32 * halves)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows_in_all_outputs_of_its_row_alone(tier: str, poison: float) -> None:
    x = activations(3, 96)
    clean = packed("Q4_0", random_blocks("Q4_0", 40, 96, 0.1), 96)
    before = product(tier, clean, x)
    x[1, 40] = poison
    after = product(tier, clean, x)
    assert np.isnan(after[1]).all()
    np.testing.assert_array_equal(after[[0, 2]], before[[0, 2]])


# ---- packing ----


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("scale", [1e-7, 0.01, 100.0])  # 1e-7: denormal as fp16
@pytest.mark.parametrize("name", KEPT)
def test_weights_are_what_was_stored(name: str, scale: float, tier: str) -> None:
    inputs = 512
    stored = random_blocks(name, 45, inputs, scale)
    stored[3] = 0
    weights = unpacked(tier, packed(name, stored, inputs))
    np.testing.assert_array_equal(weights, dequantize(stored, kind_of(name)))


@pytest.mark.parametrize("name", FORMATS)
def test_weights_take_no_more_room_than_in_the_file(name: str) -> None:
    stored = random_blocks(name, 64, 1024, 0.1)
    assert packed(name, stored, 1024).num_bytes == stored.nbytes


@pytest.mark.parametrize(("name", "bits"), [(name, bits) for name, (_, bits) in LARGER.items()])
def test_codes_of_points_take_the_room_of_their_elements(name: str, bits: float) -> None:
    stored = random_blocks(name, 64, 1024, 0.1)
    assert packed(name, stored, 1024).num_bytes * 8 == 64 * 1024 * bits


@pytest.mark.parametrize(
    ("format_name", "bits"),
    [("U8", 8.5), ("U8By64", 8.25), ("U8By128", 8.125), ("U4", 4.5), ("U4By128", 4.125)],
)
def test_larger_groups_of_weights_made_at_load_take_less_room(
    format_name: str, bits: float
) -> None:
    rows = [np.zeros(1024 * 4, np.uint8)] * 64
    assert _native_test.pack(format_name, F32, rows, 1024).num_bytes * 8 == 64 * 1024 * bits


@pytest.mark.parametrize("tier", TIERS)
def test_every_exponent_of_mxfp4_and_every_scale_of_fp16_survives(tier: str) -> None:
    stored = random_blocks("MXFP4", 8, 32 * 32, 1.0)
    blocks = stored.reshape(-1).view(LAYOUTS["MXFP4"])
    blocks["exponent"] = np.arange(256)
    expected = dequantize(stored, kind_of("MXFP4"))
    np.testing.assert_array_equal(unpacked(tier, packed("MXFP4", stored, 1024)), expected)

    stored = random_blocks("Q8_0", 62, 1024 * 32, 1.0)  # 31 finite exponents, both signs
    blocks = stored.reshape(-1).view(LAYOUTS["Q8_0"])
    bits = np.arange(1 << 16, dtype=np.uint16)
    blocks["scale"] = bits[bits & 0x7C00 != 0x7C00].view(np.float16)
    expected = dequantize(stored, kind_of("Q8_0"))
    matrix = packed("Q8_0", stored, 1024 * 32)
    for output in (0, 1, 30, 31, 32, 61):
        row = np.empty(1024 * 32, np.float32)
        _native_test.unpack_row(tier, matrix, output, row)
        np.testing.assert_array_equal(row, expected[output])


def test_missing_rows_are_zeros() -> None:
    stored = random_blocks("Q4_1", 3, 64, 0.1)
    matrix = _native_test.pack("U4Min", CODES["Q4_1"], [stored[0], None, stored[2]], 64)
    weights = unpacked(TIERS[-1], matrix)
    assert not weights[1].any()
    expected = dequantize(stored, kind_of("Q4_1"))
    np.testing.assert_array_equal(weights[[0, 2]], expected[[0, 2]])
    x = activations(2, 64)
    assert not product(TIERS[-1], matrix, x)[:, 1].any()


def as_stored(values: Floats, stored_type: int) -> tuple[list[Bytes], Floats]:
    """Return rows as bytes of a float type, and the numbers that they mean."""
    if stored_type == BF16:
        halves = (values.view(np.uint32) >> 16).astype(np.uint16)
        return list(halves.view(np.uint8)), (halves.astype(np.uint32) << 16).view(np.float32)
    numbers = values.astype(np.float16 if stored_type == F16 else np.float32)
    return list(numbers.view(np.uint8)), numbers.astype(np.float32)


@pytest.mark.parametrize("stored_type", [F32, F16, BF16])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_int8_made_at_load_is_as_near_as_int8_can_be(stored_type: int, group: int) -> None:
    values = np.random.default_rng(2).standard_normal((40, 3 * group)).astype(np.float32)
    values[4, :group] = 0
    values[5] *= np.float32(1e-6)
    rows, numbers = as_stored(values, stored_type)
    format_name = "U8" if group == 32 else f"U8By{group}"
    weights = unpacked(TIERS[-1], _native_test.pack(format_name, stored_type, rows, 3 * group))
    groups = numbers.reshape(40, 3, group)
    steps = np.abs(groups).max(-1, keepdims=True) / 127
    # Half a step, and what the rounding of the scale to fp16 (2^-25 where denormal) can add.
    limit = steps * (0.5 + 127 * 2.0**-11) + 128 * 2.0**-25
    assert (np.abs(weights.reshape(groups.shape) - groups) <= limit).all()
    assert not weights[4, :group].any()


@pytest.mark.parametrize("stored_type", [F32, F16, BF16])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_int4_made_at_load_beats_plain_rounding(stored_type: int, group: int) -> None:
    generator = np.random.default_rng(3)
    values = (generator.standard_t(5, (64, 256)) * 0.02).astype(np.float32)
    values[7, :group] = 0
    rows, numbers = as_stored(values, stored_type)
    format_name = "U4" if group == 32 else f"U4By{group}"
    weights = unpacked(TIERS[-1], _native_test.pack(format_name, stored_type, rows, 256))
    groups = numbers.reshape(64, -1, group)
    extremes = np.take_along_axis(groups, np.abs(groups).argmax(-1, keepdims=True), -1)
    for scales in (np.abs(extremes) / 7, extremes / -8):
        with np.errstate(all="ignore"):
            codes = np.nan_to_num(np.clip(np.rint(groups / scales), -8, 7))
        plain = np.square(codes * scales - groups).sum(-1)
        ours = np.square(weights.reshape(groups.shape) - groups).sum(-1)
        assert (ours <= plain * 1.01).all()
        assert ours.sum() < 0.95 * plain.sum()
    assert not weights[7, :group].any()


@pytest.mark.parametrize("format_name", MADE)
def test_weights_that_are_not_finite_do_not_hide(format_name: str) -> None:
    values = np.ones((3, 64), np.float32)
    values[1, 3] = np.nan
    values[2, 40] = np.inf
    matrix = _native_test.pack(format_name, F32, list(values.view(np.uint8)), 64)
    out = product(TIERS[-1], matrix, np.ones((1, 64), np.float32))
    assert np.isfinite(out[0, 0])
    assert not np.isfinite(out[0, 1:]).any()


def test_inputs_that_are_not_whole_blocks_are_refused() -> None:
    row = np.zeros(48 * 4, np.uint8)
    with pytest.raises(ValueError, match="blocks of 32, and 48 are not a multiple"):
        _native_test.pack("U8", F32, [row], 48)
    with pytest.raises(ValueError, match="Q4_0 has inputs in blocks of 32, and 48"):
        _native_test.pack("U4", CODES["Q4_0"], [row], 48)
    with pytest.raises(ValueError, match="Q6_K has inputs in blocks of 256, and 288"):
        _native_test.pack("U6", CODES["Q6_K"], [row], 288)
    with pytest.raises(ValueError, match="cannot be packed"):
        _native_test.pack("U8", CODES["Q4_0"], [np.zeros(18, np.uint8)], 32)


# ---- products ----


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("format_name", ALL)
def test_products_are_those_of_the_rounded_numbers(format_name: str, tier: str) -> None:
    matrix = matrix_in(format_name, 70)
    x = activations(5, matrix.inputs)
    codes, scales = rounded(x, 128 if format_name == "U8Wide" else GROUP)
    seen = (codes.astype(np.float64) * scales).reshape(len(x), -1)[:, : matrix.inputs]
    weights = unpacked(tier, matrix).astype(np.float64)
    expected = seen @ weights.T
    # At most four roundings a group, each of something no larger than the sum of magnitudes. The
    # minima's and the codes' parts may be larger than a weight: count them at twice their size.
    room = np.abs(seen) @ (np.abs(weights) + np.abs(weights).max()).T
    assert (np.abs(product(tier, matrix, x) - expected) <= room * 2.0**-24 * 8).all()


@pytest.mark.parametrize("format_name", ALL)
@pytest.mark.parametrize("scale", [1e-7, 0.05, 100.0])
def test_all_tiers_give_equal_bits(format_name: str, scale: float) -> None:
    matrix = matrix_in(format_name, 40, scale)
    x = activations(45, matrix.inputs)
    x[3] = 0
    x[4, :32] *= np.float32(1e-30)
    first, *others = (product(tier, matrix, x) for tier in TIERS)
    for other in others:
        np.testing.assert_array_equal(other.view(np.uint32), first.view(np.uint32))


@pytest.mark.parametrize("format_name", ["U8", "Table4"])
def test_the_largest_codes_do_not_saturate(format_name: str) -> None:
    name = ONE_EACH[format_name]
    stored = random_blocks(name, 32, 64, 1.0)
    blocks = stored.reshape(-1).view(LAYOUTS[name])
    blocks["scale"] = 1
    codes = blocks["values"].view(np.uint8) if name == "Q8_0" else blocks["low"]
    codes[:16] = 0x80 if name == "Q8_0" else 0x00  # -128, or the table's -127
    codes[16:] = 0x7F if name == "Q8_0" else 0xFF
    weights = dequantize(stored, kind_of(name)).astype(np.float64)
    for sign in (-1, 1):
        x = np.full((2, 64), 127 * sign, np.float32)
        for tier in TIERS:
            out = product(tier, packed(name, stored, 64), x)
            np.testing.assert_array_equal(out, x @ weights.T)


OUTPUTS = 70  # the last panel is not full
COUNTS = (*range(1, 41), 100, 513)


@cache
def alone(format_name: str) -> tuple[PackedMatrix, Floats, Floats]:
    """Return a matrix, rows, and the product of each row by itself."""
    matrix = matrix_in(format_name, OUTPUTS)
    x = activations(max(COUNTS), matrix.inputs)
    return matrix, x, np.vstack([product(TIERS[-1], matrix, row[None]) for row in x])


@pytest.mark.matrix
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("format_name", ALL)
def test_a_row_does_not_depend_on_the_rows_beside_it(format_name: str, tier: str) -> None:
    matrix, x, expected = alone(format_name)
    for count in COUNTS if tier != "scalar" else (1, 2, 3, 6, 7, 33):
        first = (count * 7) % (len(x) - count + 1)  # so that rows stand at other places each time
        out = product(tier, matrix, x[first : first + count])
        np.testing.assert_array_equal(out, expected[first : first + count], err_msg=f"{count} rows")


@pytest.mark.matrix
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("format_name", ALL)
def test_panels_may_be_split_anywhere(format_name: str, tier: str) -> None:
    matrix, x, expected = alone(format_name)
    for count in (1, 5, 40):
        for first_panel in range(matrix.panels):
            for end_panel in range(first_panel + 1, matrix.panels + 1):
                out = product(tier, matrix, x[:count], first_panel, end_panel)
                done = slice(first_panel * 32, min(end_panel * 32, OUTPUTS))
                np.testing.assert_array_equal(out[:, done], expected[:count, done])
                assert np.isnan(out).sum() == out.size - expected[:count, done].size


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("count", [2, 40])
def test_the_epilogue_is_applied(tier: str, count: int) -> None:
    matrix, x, expected = alone("U4Min")
    generator = np.random.default_rng(5)
    bias = generator.standard_normal(OUTPUTS).astype(np.float32)
    residual = generator.standard_normal((count, OUTPUTS + 3)).astype(np.float32)
    out = np.zeros((count, OUTPUTS + 3), np.float32)
    prepared = _native_test.prepare(tier, "U4Min", x[:count])
    _native_test.gemm(tier, matrix, prepared, out, first_output=3, bias=bias, residual=residual)
    np.testing.assert_array_equal(out[:, 3:], expected[:count] + bias + residual[:, 3:])
