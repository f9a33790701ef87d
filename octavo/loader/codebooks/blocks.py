"""Decoders of GGUF's blocks whose codes choose points of a codebook, to float32, with the layouts.

All of them have 256 elements, in runs of 16 or 32 with small scales: an odd number times the
block's scale. Every product is exact in float32: 11 bits of float16, five of an odd number and six
of a level fit its 24.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.loader.blocks.small_blocks import Blocks, Floats, column
from octavo.loader.codebooks.points import IQ1, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS

LAYOUTS = {
    "IQ1_S": np.dtype([("scale", "<f2"), ("low", "u1", 32), ("high", "<u2", 8)]),
    "IQ1_M": np.dtype([("low", "u1", 32), ("high", "u1", 16), ("scales", "<u2", 4)]),
    "IQ2_XXS": np.dtype([("scale", "<f2"), ("runs", [("points", "u1", 4), ("rest", "<u4")], 8)]),
    "IQ2_XS": np.dtype([("scale", "<f2"), ("codes", "<u2", 32), ("scales", "u1", 8)]),
    "IQ2_S": np.dtype(
        [
            ("scale", "<f2"),
            ("low", "u1", 32),
            ("signs", "u1", 32),
            ("high", "u1", 8),
            ("scales", "u1", 8),
        ]
    ),
    "IQ3_XXS": np.dtype([("scale", "<f2"), ("points", "u1", 64), ("rest", "<u4", 8)]),
    "IQ3_S": np.dtype(
        [
            ("scale", "<f2"),
            ("low", "u1", 64),
            ("high", "u1", 8),
            ("signs", "u1", 32),
            ("scales", "u1", 4),
        ]
    ),
}

# The factors of eight elements for a byte of signs, the first element's in the lowest bit.
_BYTES = np.arange(256, dtype=np.uint8)[:, None]
_SIGNS = 1 - 2 * np.unpackbits(_BYTES, axis=1, bitorder="little").astype(np.float32)
# Where only seven signs are stored, the last makes their product positive.
_SEVEN_SIGNS = _SIGNS[:128].copy()
_SEVEN_SIGNS[:, 7] = _SEVEN_SIGNS.prod(axis=1)
# All values of some elements of IQ1 are an eighth above their levels, or an eighth below them.
_SHIFTED_IQ1 = np.concatenate([IQ1 + np.float32(0.125), IQ1 - np.float32(0.125)])

Codes = NDArray[np.integer[Any]]


def _bits(packed: Codes, bits: int, count: int) -> Codes:
    """Split numbers [block, k] into `count` values each, the lowest bits first: [block, values]."""
    shifts = np.arange(0, bits * count, bits).astype(packed.dtype)
    values: Codes = packed[..., None] >> shifts & packed.dtype.type((1 << bits) - 1)
    return values.reshape(len(packed), -1)


def _odd(scale: Floats, numbers: Codes, unit: float = 1) -> Floats:
    """Return the scales of runs: (2 · number + 1) · unit · the block's scale."""
    factors = numbers.astype(np.float32)
    factors += np.float32(0.5)
    factors *= np.float32(2 * unit)
    factors *= scale
    return factors


def _look_up(codebook: Floats, codes: Codes, scales: Floats, out: Floats) -> None:
    """Write the points of the codes, multiplied by the scales of their runs."""
    points = out.reshape(-1, codebook.shape[1])
    np.take(codebook, codes.reshape(-1), axis=0, out=points, mode="clip")
    runs = out.reshape(*scales.shape, -1)
    runs *= scales[..., None]


def _sign(factors: Floats, signs: Codes, out: Floats) -> None:
    """Give each eight elements the signs of a number."""
    eights = out.reshape(-1, 8)
    eights *= np.take(factors, signs.reshape(-1), axis=0)


def decode_iq1_s(blocks: Blocks, out: Floats) -> None:
    # Of sixteen bits for a run, twelve are the upper bits of four codes, three the scale, and the
    # highest is the direction of the shift.
    high = blocks["high"]
    codes = blocks["low"] | _bits(high, 3, 4) << 8 | np.repeat(high >> 15 << 11, 4, axis=1)
    scales = _odd(column(blocks["scale"]), high >> 12 & 7)
    _look_up(_SHIFTED_IQ1, codes, scales, out)


def decode_iq1_m(blocks: Blocks, out: Floats) -> None:
    # Four nibbles, the highest of each sixteen bits of scales, are the block's scale.
    words = blocks["scales"]
    scale = np.bitwise_or.reduce(words >> 12 << np.arange(0, 16, 4, dtype=np.uint16), axis=1)
    scales = _odd(column(scale.view(np.float16)), _bits(blocks["scales"], 3, 4))
    # Four bits for a code are its upper three bits and the direction of its shift.
    codes = blocks["low"] | _bits(blocks["high"], 4, 2).astype(np.uint16) << 8
    _look_up(_SHIFTED_IQ1, codes, scales, out)


def decode_iq2_xxs(blocks: Blocks, out: Floats) -> None:
    # The highest four of 32 bits are the scale of a run; the others are signs.
    rest = blocks["runs"]["rest"]
    scales = _odd(column(blocks["scale"]), rest >> 28, 1 / 8)
    _look_up(IQ2_XXS, blocks["runs"]["points"], scales, out)
    _sign(_SEVEN_SIGNS, _bits(rest, 7, 4), out)


def decode_iq2_xs(blocks: Blocks, out: Floats) -> None:
    # Nine bits of a code, seven of its signs.
    codes = blocks["codes"]
    scales = _odd(column(blocks["scale"]), _bits(blocks["scales"], 4, 2), 1 / 8)
    _look_up(IQ2_XS, codes & 511, scales, out)
    _sign(_SEVEN_SIGNS, codes >> 9, out)


def decode_iq2_s(blocks: Blocks, out: Floats) -> None:
    scales = _odd(column(blocks["scale"]), _bits(blocks["scales"], 4, 2), 1 / 8)
    codes = blocks["low"] | _bits(blocks["high"], 2, 4).astype(np.uint16) << 8
    _look_up(IQ2_S, codes, scales, out)
    _sign(_SIGNS, blocks["signs"], out)


def decode_iq3_xxs(blocks: Blocks, out: Floats) -> None:
    # As in IQ2_XXS, with points of four elements and the signs of eight together.
    rest = blocks["rest"]
    scales = _odd(column(blocks["scale"]), rest >> 28, 1 / 4)
    _look_up(IQ3_XXS, blocks["points"], scales, out)
    _sign(_SEVEN_SIGNS, _bits(rest, 7, 4), out)


def decode_iq3_s(blocks: Blocks, out: Floats) -> None:
    scales = _odd(column(blocks["scale"]), _bits(blocks["scales"], 4, 2))
    ninth = np.unpackbits(blocks["high"], axis=1, bitorder="little")
    _look_up(IQ3_S, blocks["low"] | ninth.astype(np.uint16) << 8, scales, out)
    _sign(_SIGNS, blocks["signs"], out)


DECODERS: dict[str, Callable[[Blocks, Floats], None]] = {
    "IQ1_S": decode_iq1_s,
    "IQ1_M": decode_iq1_m,
    "IQ2_XXS": decode_iq2_xxs,
    "IQ2_XS": decode_iq2_xs,
    "IQ2_S": decode_iq2_s,
    "IQ3_XXS": decode_iq3_xxs,
    "IQ3_S": decode_iq3_s,
}
