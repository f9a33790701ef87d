"""Decoders of GGUF's blocks with one scale, mostly of 32 elements, to float32, with the layouts.

Every product below is exact in float32 (a float16 scale has 11 significant bits, a quantised value
at most 8), so at most the addition of a minimum rounds: the values are the format's, correctly
rounded, and no order of evaluation can change them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Blocks = NDArray[np.void]  # one structured element a block
Floats = NDArray[np.float32]  # one row a block

LAYOUTS = {
    "Q4_0": np.dtype([("scale", "<f2"), ("low", "u1", 16)]),
    "Q4_1": np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("low", "u1", 16)]),
    "Q5_0": np.dtype([("scale", "<f2"), ("high", "u1", 4), ("low", "u1", 16)]),
    "Q5_1": np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("high", "u1", 4), ("low", "u1", 16)]),
    "Q8_0": np.dtype([("scale", "<f2"), ("values", "i1", 32)]),
    "Q8_1": np.dtype([("scale", "<f2"), ("sum", "<f2"), ("values", "i1", 32)]),
    "IQ4_NL": np.dtype([("scale", "<f2"), ("low", "u1", 16)]),
    "MXFP4": np.dtype([("exponent", "u1"), ("low", "u1", 16)]),
    "NVFP4": np.dtype([("scales", "u1", 4), ("low", "u1", (4, 8))]),
    "Q1_0": np.dtype([("scale", "<f2"), ("signs", "u1", 16)]),
    "Q2_0": np.dtype([("scale", "<f2"), ("codes", "u1", 16)]),
}

# The sixteen levels of the non-linear four-bit types, denser near zero where weights are.
IQ4_LEVELS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
# Twice the values of the four-bit float E2M1, so that they are whole.
DOUBLED_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)

# Halves of the unsigned E4M3 floats, whose highest bit means nothing. The code of NaN is a zero.
_CODES = np.arange(256, dtype=np.int32)
_MANTISSAS = np.where(_CODES >> 3 & 15, 8, 0) + (_CODES & 7)
HALVED_E4M3 = np.ldexp(_MANTISSAS.astype(np.float32), np.maximum(_CODES >> 3 & 15, 1) - 11)
HALVED_E4M3[0x7F] = 0


def nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Split […, k] bytes into […, 2k] values: all low halves, then all high halves."""
    values = np.empty((*packed.shape[:-1], 2, packed.shape[-1]), np.uint8)
    np.bitwise_and(packed, 15, out=values[..., 0, :])
    np.right_shift(packed, 4, out=values[..., 1, :])
    return values.reshape(*packed.shape[:-1], -1)


def column(numbers: NDArray[Any]) -> Floats:
    """Return one number for each block, shaped to be combined with the block's row."""
    return numbers.astype(np.float32)[..., None]


def decode_q4_0(blocks: Blocks, out: Floats) -> None:
    np.subtract(nibbles(blocks["low"]), np.float32(8), out=out)
    out *= column(blocks["scale"])


def decode_q4_1(blocks: Blocks, out: Floats) -> None:
    np.multiply(nibbles(blocks["low"]), column(blocks["scale"]), out=out)
    out += column(blocks["minimum"])


def _five_bits(blocks: Blocks) -> NDArray[np.uint8]:
    """Combine four low bits from nibbles with a fifth, which for element i is bit i of `high`."""
    values = np.unpackbits(blocks["high"], axis=-1, bitorder="little")
    values <<= 4
    values |= nibbles(blocks["low"])
    return values


def decode_q5_0(blocks: Blocks, out: Floats) -> None:
    np.subtract(_five_bits(blocks), np.float32(16), out=out)
    out *= column(blocks["scale"])


def decode_q5_1(blocks: Blocks, out: Floats) -> None:
    np.multiply(_five_bits(blocks), column(blocks["scale"]), out=out)
    out += column(blocks["minimum"])


def decode_q8(blocks: Blocks, out: Floats) -> None:
    np.multiply(blocks["values"], column(blocks["scale"]), out=out)


def decode_iq4_nl(blocks: Blocks, out: Floats) -> None:
    np.take(IQ4_LEVELS, nibbles(blocks["low"]), out=out, mode="clip")
    out *= column(blocks["scale"])


def decode_mxfp4(blocks: Blocks, out: Floats) -> None:
    np.take(DOUBLED_E2M1, nibbles(blocks["low"]), out=out, mode="clip")
    # The scale is two to the power (exponent - 127), and half of that for the doubled values.
    out *= np.ldexp(np.float32(1), blocks["exponent"].astype(np.int32) - 128)[:, None]


def decode_nvfp4(blocks: Blocks, out: Floats) -> None:
    rows = out.reshape(-1, 4, 16)
    np.take(DOUBLED_E2M1, nibbles(blocks["low"]), out=rows, mode="clip")
    rows *= HALVED_E4M3[blocks["scales"]][..., None]


def decode_q1_0(blocks: Blocks, out: Floats) -> None:
    # A set bit is the scale, any other its negative.
    np.multiply(np.unpackbits(blocks["signs"], axis=1, bitorder="little"), np.float32(2), out=out)
    out -= np.float32(1)
    out *= column(blocks["scale"])


def decode_q2_0(blocks: Blocks, out: Floats) -> None:
    codes = blocks["codes"][..., None] >> np.arange(0, 8, 2, dtype=np.uint8) & 3
    np.subtract(codes.reshape(out.shape), np.float32(1), out=out)
    out *= column(blocks["scale"])
