"""Decoders of GGUF's blocks of 256 elements, whose sub-blocks have small scales, to float32.

As in the small blocks, every product is exact in float32: 11 bits of float16, at most 7 of a
sub-scale and 6 of a value fit its 24. Only the subtraction of a minimum rounds. (Q8_K, which is
never a weight's type, has a float32 scale, and there the one product rounds.)
"""

import numpy as np
from numpy.typing import NDArray

from octavo.loader.blocks.small_blocks import IQ4_LEVELS, Blocks, Floats, column, nibbles

_HEAD_2 = [("scale", "<f2"), ("minimum", "<f2")]
LAYOUTS = {
    "Q2_K": np.dtype([("scales", "u1", 16), ("low", "u1", (2, 32)), *_HEAD_2]),
    "Q3_K": np.dtype(
        [("high", "u1", 32), ("low", "u1", (2, 32)), ("scales", "u1", 12), ("scale", "<f2")]
    ),
    "Q4_K": np.dtype([*_HEAD_2, ("scales", "u1", (3, 4)), ("low", "u1", (4, 32))]),
    "Q5_K": np.dtype(
        [*_HEAD_2, ("scales", "u1", (3, 4)), ("high", "u1", 32), ("low", "u1", (4, 32))]
    ),
    "Q6_K": np.dtype(
        [("low", "u1", (2, 64)), ("high", "u1", (2, 32)), ("scales", "i1", 16), ("scale", "<f2")]
    ),
    "Q8_K": np.dtype([("scale", "<f4"), ("values", "i1", 256), ("sums", "<i2", 16)]),
    "IQ4_XS": np.dtype(
        [("scale", "<f2"), ("high", "<u2"), ("scales", "u1", 4), ("low", "u1", (8, 16))]
    ),
    "TQ1_0": np.dtype(
        [("first", "u1", 32), ("middle", "u1", 16), ("last", "u1", 4), ("scale", "<f2")]
    ),
    "TQ2_0": np.dtype([("codes", "u1", (2, 32)), ("scale", "<f2")]),
}

_EVERY_BIT = np.arange(8, dtype=np.uint8)[:, None]
_EVERY_PAIR = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
_POWERS_OF_3 = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]


def _pairs(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Split […, k] bytes into […, 4, k] two-bit values: the lowest pair of each byte first."""
    values: NDArray[np.uint8] = packed[..., None, :] >> _EVERY_PAIR
    values &= 3
    return values


def _bits(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Split […, k] bytes into […, 8, k] bits: the lowest bit of each byte first."""
    values: NDArray[np.uint8] = packed[..., None, :] >> _EVERY_BIT
    values &= 1
    return values


def _scaled(values: NDArray[np.integer], scales: Floats, out: Floats) -> Floats:
    """Write values × scales, one for each sub-block; return [block, sub-block, element]."""
    rows = out.reshape(*scales.shape, -1)
    np.multiply(values.reshape(rows.shape), scales[..., None], out=rows)
    return rows


def decode_q2_k(blocks: Blocks, out: Floats) -> None:
    scales = column(blocks["scale"]) * (blocks["scales"] & 15)
    minimums = column(blocks["minimum"]) * (blocks["scales"] >> 4)
    rows = _scaled(_pairs(blocks["low"]), scales, out)
    rows -= minimums[..., None]


def decode_q3_k(blocks: Blocks, out: Floats) -> None:
    # Sixteen six-bit scales: four low bits each in bytes 0–7, two high bits each in bytes 8–11.
    stored = blocks["scales"]
    scales = nibbles(stored[:, :8]) | _pairs(stored[:, 8:]).reshape(-1, 16) << 4
    # The third bit, where it is missing, means minus four.
    values = _pairs(blocks["low"]).reshape(-1, 8, 32) | _bits(blocks["high"]) << 2
    signed = values.view(np.int8)
    signed -= 4
    _scaled(signed, column(blocks["scale"]) * (scales.view(np.int8) - np.int8(32)), out)


def _scales_and_minimums(blocks: Blocks) -> tuple[Floats, Floats]:
    """Unpack Q4_K's and Q5_K's eight scales and eight minimums of six bits from twelve bytes.

    The first four of each are whole in bytes 0–3 and 4–7; of the last four, the low nibbles share
    bytes 8–11 and the upper two bits are the upper two bits of those first bytes.
    """
    first_scales, first_minimums, nibble_pairs = np.moveaxis(blocks["scales"], 1, 0)
    scales = np.hstack([first_scales & 63, nibble_pairs & 15 | first_scales >> 6 << 4])
    minimums = np.hstack([first_minimums & 63, nibble_pairs >> 4 | first_minimums >> 6 << 4])
    return column(blocks["scale"]) * scales, column(blocks["minimum"]) * minimums


def decode_q4_k(blocks: Blocks, out: Floats) -> None:
    scales, minimums = _scales_and_minimums(blocks)
    rows = _scaled(nibbles(blocks["low"]), scales, out)
    rows -= minimums[..., None]


def decode_q5_k(blocks: Blocks, out: Floats) -> None:
    scales, minimums = _scales_and_minimums(blocks)
    values = nibbles(blocks["low"]).reshape(-1, 8, 32) | _bits(blocks["high"]) << 4
    rows = _scaled(values, scales, out)
    rows -= minimums[..., None]


def decode_q6_k(blocks: Blocks, out: Floats) -> None:
    values = nibbles(blocks["low"]).reshape(-1, 2, 4, 32) | _pairs(blocks["high"]) << 4
    signed = values.view(np.int8)
    signed -= 32
    _scaled(signed, column(blocks["scale"]) * blocks["scales"], out)


def decode_q8_k(blocks: Blocks, out: Floats) -> None:
    np.multiply(blocks["values"], blocks["scale"][:, None], out=out)


def decode_iq4_xs(blocks: Blocks, out: Floats) -> None:
    # Eight six-bit scales: low nibbles two a byte, upper pairs all in one sixteen-bit number.
    low = np.stack([blocks["scales"] & 15, blocks["scales"] >> 4], axis=-1).reshape(-1, 8)
    high = blocks["high"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scales = column(blocks["scale"]) * ((low | high << 4).astype(np.int8) - np.int8(32))
    rows = out.reshape(-1, 8, 32)
    np.take(IQ4_LEVELS, nibbles(blocks["low"]), out=rows, mode="clip")
    rows *= scales[..., None]


def _trits(packed: NDArray[np.uint8], count: int) -> NDArray[np.integer]:
    """Split […, k] bytes into `count` digits of base three each: the first digit of each first.

    A byte is a fraction of 256. Times three, its whole part is the first digit; the rest, times
    three, gives the second.
    """
    rest = packed[:, None, :] * _POWERS_OF_3[:count]  # modulo 256
    digits = rest.astype(np.uint16) * 3 >> 8
    return digits.reshape(len(packed), -1)


def decode_tq1_0(blocks: Blocks, out: Floats) -> None:
    parts = (blocks["first"], 5), (blocks["middle"], 5), (blocks["last"], 4)
    digits = np.concatenate([_trits(packed, count) for packed, count in parts], axis=1)
    np.subtract(digits, np.float32(1), out=out)
    out *= column(blocks["scale"])


def decode_tq2_0(blocks: Blocks, out: Floats) -> None:
    np.subtract(_pairs(blocks["codes"]).reshape(out.shape), np.float32(1), out=out)
    out *= column(blocks["scale"])
