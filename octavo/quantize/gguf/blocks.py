"""Encoders of rows to the types of GGUF: the inverse of octavo/loader's decoders.

Small types have groups of 32 with a scale in fp16, and perhaps a minimum. K types have blocks of
256, whose groups have small scales of their own.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from octavo.loader.blocks.small_blocks import LAYOUTS as SMALL
from octavo.loader.blocks.super_blocks import LAYOUTS as LARGE
from octavo.loader.gguf.types import Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0
from octavo.loader.tensor_type import TensorType
from octavo.quantize.gguf.choices import divided, halves, scales_and_minima, signed_scales
from octavo.quantize.packer import Floats

Bytes = NDArray[np.uint8]
Blocks = NDArray[np.void]

_SUPER = 256
_SIX_BITS = np.float32(63)
_LOW, _FOUR, _SIX = np.uint8(15), np.uint8(4), np.uint8(6)  # a mask, and shifts
# Codes that the value of the largest magnitude is tried for, around the first and the last one.
_TARGETS = {
    4: (-8.5, -8.0, -7.5, -7.0, 7.5, 7.0, 6.5),
    5: (-16.5, -16.0, -15.5, 15.5, 15.0),
    6: (-33.0, -32.0, -31.0, 31.0),
    8: (127.0,),
}


class BlockType(Struct, frozen=True):
    """A type that rows can be encoded to."""

    type: TensorType
    encode: Callable[[Floats], Blocks]  # [blocks, values of a block] → blocks

    def rows(self, values: Floats) -> Bytes:
        """Encode rows [rows, inputs], whose inputs are whole blocks."""
        blocks = self.encode(values.reshape(-1, self.type.block_elements))
        return np.ascontiguousarray(blocks).view(np.uint8).reshape(len(values), -1)


def _nibbles(codes: Bytes) -> Bytes:
    """Join codes [..., 2k] of four bits: the first half of them below, the second above."""
    low, high = np.split(codes, 2, axis=-1)
    joined: Bytes = (low & _LOW) | (high & _LOW) << _FOUR
    return joined


def _bits(codes: Bytes, count: int) -> Bytes:
    """Join codes [blocks, parts, k] of so many bits to bytes [blocks, k], the first part lowest."""
    joined = np.zeros((len(codes), codes.shape[2]), np.uint8)
    for part in range(codes.shape[1]):
        joined |= codes[:, part] << np.uint8(count * part)
    return joined


def _codes(groups: Floats, scales: Floats, low: int, high: int, offset: int = 0) -> Bytes:
    """Return the nearest codes from `low` to `high`, plus an offset, as bytes."""
    codes = np.clip(np.rint(divided(groups, scales)), low, high)
    return (codes + np.float32(offset)).astype(np.int16).astype(np.uint8)


def _encode_q8_0(groups: Floats) -> Blocks:
    blocks = np.empty(len(groups), SMALL["Q8_0"])
    scales = halves(np.abs(groups).max(-1) / np.float32(127))
    blocks["scale"] = scales
    blocks["values"] = _codes(groups, scales, -127, 127).view(np.int8)
    return blocks


def _encode_signed(name: str, bits: int) -> Callable[[Floats], Blocks]:
    half = 1 << (bits - 1)

    def encode(groups: Floats) -> Blocks:
        blocks = np.empty(len(groups), SMALL[name])
        scales = halves(signed_scales(groups, bits, _TARGETS[bits]))
        codes = _codes(groups, scales, -half, half - 1, half)
        blocks["scale"] = scales
        _put_codes(blocks, codes, bits)
        return blocks

    return encode


def _encode_with_minimum(name: str, bits: int) -> Callable[[Floats], Blocks]:
    def encode(groups: Floats) -> Blocks:
        blocks = np.empty(len(groups), SMALL[name])
        found = scales_and_minima(groups, bits, below_zero=False)
        scales, minima = map(halves, found)
        blocks["scale"], blocks["minimum"] = scales, minima
        codes = _codes(groups - minima[:, None], scales, 0, (1 << bits) - 1)
        _put_codes(blocks, codes, bits)
        return blocks

    return encode


def _put_codes(blocks: Blocks, codes: Bytes, bits: int) -> None:
    blocks["low"] = _nibbles(codes)
    if bits == 5:
        blocks["high"] = np.packbits(codes >> _FOUR, axis=-1, bitorder="little")


def _encode_k(name: str, bits: int) -> Callable[[Floats], Blocks]:
    """Return the encoder of Q4_K and Q5_K: eight groups, each with a scale and a minimum."""

    def encode(values: Floats) -> Blocks:
        groups = values.reshape(-1, 8, 32)
        scales, minima = scales_and_minima(groups, bits, below_zero=True)
        minima = -minima
        blocks = np.empty(len(groups), LARGE[name])
        outer = [halves(each.max(-1) / _SIX_BITS) for each in (scales, minima)]
        six = [_codes(a, b, 0, 63) for a, b in zip((scales, minima), outer, strict=True)]
        blocks["scale"], blocks["minimum"] = outer
        blocks["scales"] = _six_bits(*six)
        own, low = (b[:, None] * a.astype(np.float32) for a, b in zip(six, outer, strict=True))
        codes = _codes(groups + low[..., None], own, 0, (1 << bits) - 1)
        blocks["low"] = _nibbles(codes.reshape(-1, 4, 64))
        if bits == 5:
            blocks["high"] = _bits(codes >> _FOUR, 1)
        return blocks

    return encode


def _six_bits(scales: Bytes, minima: Bytes) -> Bytes:
    """Join eight scales and eight minima of six bits: [blocks, 3, 4]."""
    first, last = np.split(scales, 2, axis=-1)
    first_low, last_low = np.split(minima, 2, axis=-1)
    return np.stack(
        (
            first | last >> _FOUR << _SIX,
            first_low | last_low >> _FOUR << _SIX,
            (last & _LOW) | (last_low & _LOW) << _FOUR,
        ),
        axis=1,
    )


def _encode_q6_k(values: Floats) -> Blocks:
    groups = values.reshape(-1, 16, 16)
    scales = signed_scales(groups, 6, _TARGETS[6])
    place = np.abs(scales).argmax(-1)[:, None]
    outer = halves(np.take_along_axis(scales, place, -1)[:, 0] / np.float32(-128))
    blocks = np.empty(len(groups), LARGE["Q6_K"])
    blocks["scale"] = outer
    blocks["scales"] = _codes(scales, outer, -128, 127).view(np.int8)
    own = outer[:, None] * blocks["scales"].astype(np.float32)
    codes = _codes(groups, own, -32, 31, 32).reshape(-1, 2, 4, 32)
    blocks["low"] = _nibbles(codes.reshape(-1, 2, 128))
    blocks["high"] = _bits((codes >> _FOUR).reshape(-1, 4, 32), 2).reshape(-1, 2, 32)
    return blocks


BLOCK_TYPES = {
    each.type.name.lower(): each
    for each in (
        BlockType(Q4_0, _encode_signed("Q4_0", 4)),
        BlockType(Q4_1, _encode_with_minimum("Q4_1", 4)),
        BlockType(Q5_0, _encode_signed("Q5_0", 5)),
        BlockType(Q5_1, _encode_with_minimum("Q5_1", 5)),
        BlockType(Q8_0, _encode_q8_0),
        BlockType(Q4_K, _encode_k("Q4_K", 4)),
        BlockType(Q5_K, _encode_k("Q5_K", 5)),
        BlockType(Q6_K, _encode_q6_k),
    )
}
# For rows that are no whole blocks of 256: the types of groups of 32 that have as many bits.
NEAREST_SMALL = {"q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}
