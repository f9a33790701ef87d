"""Rows of integers of 2 to 8 bits in groups, each group with a scale and a zero point.

Most formats of safetensors store matrices so, each in an order of its own; here are the rows that
all of them become. The value of a code is (code - zero point) · scale. If all zero points are in
the middle of the codes, the inputs are in order and the scales are halves, GGUF's types Q4_0 and
Q8_0 have exactly these values, and the rows are of these types, which backends may know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.backends.stored_rows import Bytes, Floats, Order, RowLayout, StoredRows
from octavo.loader.gguf.types import Q4_0, Q8_0
from octavo.loader.tensor_type import F16, TensorType
from octavo.quant.plain import layout_of

# A scale for whole rows is repeated for groups of this size, so that ranks can cut the rows.
SMALL_GROUP = 32
ELEMENTS_AT_ONCE = 1 << 17  # so that temporary arrays stay in a core's own cache

_GGUF_BLOCKS = {
    Q4_0.name: np.dtype([("scale", "<f2"), ("codes", "u1", SMALL_GROUP // 2)]),
    Q8_0.name: np.dtype([("scale", "<f2"), ("codes", "u1", SMALL_GROUP)]),
}


def place_bits(bits: int) -> int:
    """Return the bits in which a row keeps a code: codes of 2 and 3 bits are kept in 4."""
    return 8 if bits == 8 else 4


def integer_name(bits: int) -> str:
    """Return the name of the type of such rows."""
    return f"INT{bits}"


def gguf_type(
    bits: int, inputs: int, group: int | None, scales: TensorType, *, is_plain: bool
) -> TensorType | None:
    """Return GGUF's type with the same values, if there is one.

    Plain integers are symmetric, and their inputs are in order.
    """
    if not is_plain or bits not in (4, 8) or scales != F16:
        return None
    if inputs % SMALL_GROUP or (group or inputs) % SMALL_GROUP:
        return None
    return Q4_0 if bits == 4 else Q8_0


@dataclass(frozen=True)
class Integers:
    """A matrix of integers, as its format has read it."""

    bits: int
    inputs: int
    group: int | None  # inputs that share a scale; None: all of a row
    scales: NDArray[Any]  # [outputs, groups]
    zeros: NDArray[np.uint8] | None  # [outputs, groups]; None: all in the middle of the codes
    # The codes of some outputs, [outputs, bytes]: unsigned, in places of `place_bits`, the first
    # in the lowest bits, and in the order of `columns`.
    codes: Callable[[slice], NDArray[np.uint8]]
    columns: Order | None = None  # the inputs group by group, if they are not stored so
    type: TensorType | None = None  # of GGUF, with these values

    def rows(self) -> StoredRows:
        """Join codes, scales and zero points to rows of groups."""
        group = SMALL_GROUP if self.type is not None else self.group or SMALL_GROUP
        if self.type is None:
            layout, block = integer_layout(self.bits, group), _block(self.bits, group)
        else:
            layout, block = layout_of(self.type), _GGUF_BLOCKS[self.type.name]
        made = self._blocks(block, group)
        return StoredRows(
            layout, self.inputs, made.view(np.uint8).reshape(len(made), -1), columns=self.columns
        )

    def _blocks(self, block: np.dtype[Any], group: int) -> NDArray[Any]:
        """Fill blocks [outputs, groups] with scales, zero points and codes."""
        # The file's group of each group of the rows, which may be smaller.
        stored = np.arange(-(-self.inputs // group)) * group // (self.group or self.inputs)
        outputs, place = len(self.scales), place_bits(self.bits)
        made = np.zeros((outputs, len(stored)), block)
        made["scale"] = self.scales[:, stored]
        if self.type is None:
            made["zero"] = 1 << (self.bits - 1) if self.zeros is None else self.zeros[:, stored]
        step = max(1, ELEMENTS_AT_ONCE // self.inputs)
        for start in range(0, outputs, step):
            part = slice(start, start + step)
            codes = self.codes(part)
            missing = len(stored) * group * place // 8 - codes.shape[1]
            codes = np.pad(codes, ((0, 0), (0, missing))) if missing else codes
            made["codes"][part] = codes.reshape(len(codes), len(stored), -1)
        if self.type == Q8_0:
            made["codes"] ^= 0x80  # unsigned bytes less 128, as signed bytes
        elif self.type == Q4_0:
            _separate(made["codes"])
        return made


@cache
def _block(bits: int, group: int) -> np.dtype[Any]:
    num_bytes = group * place_bits(bits) // 8
    return np.dtype([("scale", "<f4"), ("zero", "u1"), ("codes", "u1", num_bytes)])


@cache
def integer_layout(bits: int, group: int) -> RowLayout:
    """Return the layout of groups of integers, each group with its scale and zero point."""
    block = _block(bits, group)

    def decode(rows: Bytes) -> Floats:
        blocks = np.ascontiguousarray(rows).view(block)
        values = np.empty((*blocks.shape, group), np.float32)
        step = max(1, ELEMENTS_AT_ONCE // max(1, values[:1].size))
        for start in range(0, len(blocks), step):
            part, out = blocks[start : start + step], values[start : start + step]
            zeros = part["zero"].astype(np.float32)[..., None]
            np.subtract(unpacked(part["codes"], place_bits(bits)), zeros, out=out)
            with np.errstate(all="ignore"):  # damaged scales may be infinite or NaN
                out *= part["scale"][..., None]
        return values.reshape(len(rows), -1)

    return RowLayout(integer_name(bits), group, block.itemsize, decode, has_zero_points=True)


def unpacked(data: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Split the bytes of the last axis into codes of 2, 3, 4 or 8 bits, the lowest bits first."""
    if bits == 8:
        return data
    if bits == 3:  # eight codes in three bytes
        missing = -data.shape[-1] % 3
        if missing:
            data = np.pad(data, [(0, 0)] * (data.ndim - 1) + [(0, missing)])
        threes = data.reshape(*data.shape[:-1], -1, 3).astype(np.uint32)
        words = threes[..., 0] | threes[..., 1] << 8 | threes[..., 2] << 16
        codes = (words[..., None] >> np.arange(0, 24, 3, dtype=np.uint32) & 7).astype(np.uint8)
    else:
        codes = np.empty((*data.shape, 8 // bits), np.uint8)
        for place in range(8 // bits):
            np.bitwise_and(data >> np.uint8(bits * place), (1 << bits) - 1, out=codes[..., place])
    return codes.reshape(*data.shape[:-1], -1)


def packed(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Join codes [outputs, inputs] into their places, the first in the lowest bits."""
    if place_bits(bits) == 8:
        return codes
    if codes.shape[1] % 2:
        codes = np.pad(codes, ((0, 0), (0, 1)))
    joined: NDArray[np.uint8] = codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)
    return joined


def _separate(pairs: NDArray[np.uint8]) -> None:
    """Move codes from pairs of neighbours to GGUF's order: low halves, then high halves."""
    half = pairs.shape[-1] // 2
    first, second = pairs[..., :half].copy(), pairs[..., half:].copy()
    pairs[..., 0::2] = first & 15 | second << 4
    pairs[..., 1::2] = first >> 4 | second & 0xF0
