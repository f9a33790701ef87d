"""Every block type decodes to the format's exact values."""

import struct
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.loader import tensor_type
from octavo.loader.blocks.decoders import DECODERS, LAYOUTS
from octavo.loader.codebooks import points
from octavo.loader.dequantize import dequantize
from octavo.loader.gguf import types as gguf_types
from octavo.loader.gguf.types import TENSOR_TYPES
from octavo.loader.tensor_type import TensorType
from tests.loader.reference_blocks import ELEMENTS

CODES = {kind.name: code for code, kind in TENSOR_TYPES.items()}
KINDS = {kind.name: kind for kind in TENSOR_TYPES.values()}


def random_rows(kind: TensorType, shape: tuple[int, ...], seed: int = 0) -> NDArray[np.uint8]:
    """Return random bytes, so infinite, tiny and absurd scales are among them."""
    generator = np.random.default_rng(seed)
    stored = (*shape[:-1], shape[-1] * kind.block_bytes)
    return generator.integers(0, 256, stored, dtype=np.uint8)


def same_bits(left: NDArray[np.float32], right: NDArray[np.float32]) -> bool:
    """Return whether all bits are equal, the sign of zeros included; any NaN equals any other."""
    equal = left.view(np.uint32) == right.view(np.uint32)
    return bool(np.all(equal | (np.isnan(left) & np.isnan(right))))


def test_every_type_of_gguf_is_decoded() -> None:
    assert DECODERS.keys() == {kind.name for kind in TENSOR_TYPES.values() if kind.is_quantized}


def test_layouts_have_the_size_of_their_type() -> None:
    assert {name: layout.itemsize for name, layout in LAYOUTS.items()} == {
        name: KINDS[name].block_bytes for name in DECODERS
    }


@pytest.mark.parametrize("name", ELEMENTS)
def test_each_element_is_the_formats_value_correctly_rounded(name: str) -> None:
    kind = KINDS[name]
    rows = random_rows(kind, (24, 1))
    expected = [
        [ELEMENTS[name](row.tobytes(), index) for index in range(kind.block_elements)]
        for row in rows
    ]
    with np.errstate(over="ignore"):
        exact = np.array(expected, np.float64).astype(np.float32)
    assert same_bits(dequantize(rows, kind), exact)


@pytest.mark.parametrize("name", DECODERS)
def test_equal_to_the_reference_package(name: str) -> None:
    quants = pytest.importorskip("gguf.quants")
    constants = pytest.importorskip("gguf.constants")
    kind = KINDS[name]
    rows = random_rows(kind, (40, 3), seed=1)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            expected = quants.dequantize(rows, constants.GGMLQuantizationType(CODES[name]))
        except (NotImplementedError, ValueError):
            # The reference has no decoder of types that are no weight's, nor of the newest.
            assert name in ("Q8_1", "Q8_K", "Q1_0", "Q2_0")
            return
    assert same_bits(dequantize(rows, kind), expected)


@pytest.mark.parametrize("name", ["IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"])
def test_codebooks_are_those_of_the_reference_package(name: str) -> None:
    """Every point is compared, since random blocks need not have all codes."""
    reference = getattr(pytest.importorskip("gguf.quants"), name)
    reference.init_grid()
    ours = getattr(points, name.replace("IQ1_S", "IQ1"))
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, reference.grid[0, 0])


def test_iq2_xxs_by_hand() -> None:
    """The last code's first sign is negative, so its eighth is too."""
    run = bytes([0, 0, 0, 255]) + struct.pack("<I", 15 << 28 | 1 << 21)
    block = struct.pack("<e", 8) + run + bytes(56)
    values = dequantize(np.frombuffer(block, np.uint8), gguf_types.IQ2_XXS)
    assert values[:24].tolist() == [8 * 31.0] * 24
    last = np.array([-8, 25, 8, 8, 25, 43, 43, -43])
    assert values[24:32].tolist() == (31 * last).tolist()
    assert values[32:].tolist() == [8.0] * 224


def test_q4_0_by_hand() -> None:
    block = struct.pack("<e", 0.5) + bytes([0xF0, 0x18] + [0x88] * 14)
    values = dequantize(np.frombuffer(block, np.uint8), gguf_types.Q4_0)
    assert values[[0, 1, 2, 16, 17, 18]].tolist() == [-4.0, 0.0, 0.0, 3.5, -3.5, 0.0]


def test_q8_k_by_hand() -> None:
    block = struct.pack("<f", 0.25) + bytes([1, 255, 128, 127] + [0] * 252) + bytes(32)
    values = dequantize(np.frombuffer(block, np.uint8), gguf_types.Q8_K)
    assert values[:5].tolist() == [0.25, -0.25, -32.0, 31.75, 0.0]


def test_every_mxfp4_exponent() -> None:
    rows = np.zeros((256, 17), np.uint8)
    rows[:, 0] = np.arange(256)
    rows[:, 1:] = np.arange(16) * 17
    expected = [[ELEMENTS["MXFP4"](row.tobytes(), i) for i in range(32)] for row in rows]
    with np.errstate(over="ignore"):
        exact = np.array(expected).astype(np.float32)
    assert same_bits(dequantize(rows, gguf_types.MXFP4), exact)
    assert dequantize(rows, gguf_types.MXFP4)[0, 1] == 2.0**-128  # a subnormal is not flushed


def test_every_scale_of_nvfp4() -> None:
    """Scales have no sign; the code of NaN is a zero, as llama.cpp has it."""
    rows = np.zeros((256, 36), np.uint8)
    rows[:, :4] = np.arange(256)[:, None]
    rows[:, 4:] = np.arange(32) * 17 & 0xFF
    expected = [[ELEMENTS["NVFP4"](row.tobytes(), i) for i in range(64)] for row in rows]
    values = dequantize(rows, gguf_types.NVFP4)
    assert same_bits(values, np.array(expected).astype(np.float32))
    assert not values[0x7F].any()
    assert values[0x7E].max() == 448 * 6


@pytest.mark.parametrize("name", DECODERS)
def test_chunks_do_not_change_the_values(name: str) -> None:
    """Rows that fill more than one chunk, the last in part, decode as each row alone does."""
    kind = KINDS[name]
    rows = random_rows(kind, (5, 131072 // kind.block_elements // 4 + 1), seed=2)
    whole = dequantize(rows, kind)
    assert all(same_bits(whole[index], dequantize(rows[index], kind)) for index in range(5))


def test_shapes_and_rows_are_kept_and_strides_followed() -> None:
    stored = random_rows(gguf_types.Q4_1, (3, 4, 6), seed=3)
    whole = dequantize(stored, gguf_types.Q4_1)
    assert whole.shape == (3, 4, 192)
    columns = stored[..., 40:100]  # blocks 2, 3 and 4 of every row: not contiguous
    assert same_bits(dequantize(columns, gguf_types.Q4_1), whole[..., 64:160].copy())


def test_into_a_given_array() -> None:
    stored = random_rows(gguf_types.Q6_K, (2, 2))
    out = np.full((2, 512), 7, np.float32)
    assert dequantize(stored, gguf_types.Q6_K, out) is out
    assert same_bits(out, dequantize(stored, gguf_types.Q6_K))
    for wrong in (np.empty((2, 511), np.float32), np.empty((2, 512)), np.empty((512, 2)).T):
        with pytest.raises(ValueError, match="C-contiguous float32"):
            dequantize(stored, gguf_types.Q6_K, wrong)  # type: ignore[arg-type]


def test_rows_that_are_not_whole_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="a multiple of 18"):
        dequantize(np.zeros((2, 20), np.uint8), gguf_types.Q4_0)


def test_no_rows() -> None:
    assert dequantize(np.empty((0, 36), np.uint8), gguf_types.Q4_0).shape == (0, 64)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (tensor_type.F16, np.float16),
        (tensor_type.BF16, ml_dtypes.bfloat16),
        (tensor_type.F8_E4M3, ml_dtypes.float8_e4m3fn),
        (tensor_type.F8_E5M2, ml_dtypes.float8_e5m2),
        (tensor_type.F64, np.float64),
        (tensor_type.I8, np.int8),
    ],
)
def test_plain_types_are_converted(kind: TensorType, dtype: type) -> None:
    stored: NDArray[Any] = np.array([[1, -2], [0, 1.5]]).astype(dtype)
    expected = stored.astype(np.float64).tolist()
    assert dequantize(stored, kind).tolist() == expected
    out = np.empty((2, 2), np.float32)
    assert dequantize(stored, kind, out).tolist() == expected


def test_bf16_and_f16_keep_every_value() -> None:
    numbers = np.arange(65536, dtype=np.uint16)
    wide = (numbers.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):
        got = dequantize(numbers.view(ml_dtypes.bfloat16), tensor_type.BF16)
    assert same_bits(got, wide)
    halves = [struct.unpack("<e", struct.pack("<H", n))[0] for n in range(0, 65536, 7)]
    with np.errstate(invalid="ignore"):
        got = dequantize(numbers.view(np.float16), tensor_type.F16)
    assert same_bits(got[::7].copy(), np.array(halves).astype(np.float32))


def test_float32_is_not_copied() -> None:
    stored = np.ones(3, np.float32)
    assert dequantize(stored, tensor_type.F32) is stored
