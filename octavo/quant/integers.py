"""Rows of integers of 2 to 8 bits in groups, each group with a scale and mostly a zero point.

Most formats of safetensors store matrices so, each in an order of its own; here are the rows that
all of them become. The value of a code is (code - zero point) · scale; a symmetric matrix has all
zero points in the middle of the codes. A row is a run of groups: the scale (float32), the zero
point (a byte, unless the matrix is symmetric), the codes, the first in the lowest bits.

Types such as I4By128 say what a backend must know: the bits, whether there are zero points, the
inputs of a group. I8Wide are bytes with a scale for a whole row, which is repeated, and whose
file means activations of int8 with few scales, too. Codes of 2 and 3 bits are those of 4 with
another zero point. Other rows, which have an order of their own or groups that are no power of two,
have types such as INT4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from octavo.backends.stored_rows import Order, RowLayout, StoredRows
from octavo.loader import Checkpoint
from octavo.loader.errors import CorruptFileError
from octavo.quant.scaled_groups import ELEMENTS_AT_ONCE, SMALL_GROUP, scaled_layout

# A scale for whole rows is repeated for groups, so that ranks can cut the rows: small ones, unless
# as many ranks as are likely can share the inputs by large ones.
_LARGE_GROUP, _RANKS = 128, 8
_SIZES = (128, 64, 32)  # of the groups that types name


class IntegerKind(Struct, frozen=True):
    """The properties that all rows of a matrix share."""

    bits: int
    group: int  # inputs that share a scale
    has_zeros: bool
    name: str

    @property
    def block(self) -> np.dtype[Any]:
        """The numbers of a group."""
        zero = [("zero", "u1")] if self.has_zeros else []
        num_bytes = self.group * place_bits(self.bits) // 8
        return np.dtype([("scale", "<f4"), *zero, ("codes", "u1", num_bytes)])


def kind_of(
    bits: int,
    inputs: int,
    group: int | None,
    *,
    is_symmetric: bool,
    is_in_order: bool = True,
    takes_int8: bool = False,
) -> IntegerKind:
    """Choose the kind of rows; the group is that of the file, None for whole rows.

    `takes_int8` says that the file means products with activations that are int8 themselves.
    """
    is_plain = bits == 8 and group is None and is_symmetric and is_in_order
    if takes_int8 and is_plain and inputs % SMALL_GROUP == 0:
        return IntegerKind(bits, SMALL_GROUP, False, "I8Wide")
    size = group or (_LARGE_GROUP if inputs % (_LARGE_GROUP * _RANKS) == 0 else SMALL_GROUP)
    has_zeros = not is_symmetric or bits not in (4, 8)
    named = next((each for each in _SIZES if size % each == 0), 0)
    if not is_in_order or not named or inputs % named or (place_bits(bits) == 8 and has_zeros):
        return IntegerKind(bits, size, True, f"INT{bits}")
    zero = "Zero" if has_zeros else ""
    return IntegerKind(bits, named, has_zeros, f"I{place_bits(bits)}{zero}By{named}")


def place_bits(bits: int) -> int:
    """Return the bits in which a row keeps a code: 4 or 8."""
    return 4 if bits <= 4 else 8


@dataclass(frozen=True)
class Integers:
    """A matrix of integers, as its format has read it."""

    kind: IntegerKind
    inputs: int
    group: int | None  # inputs that share a scale in the file; None: all of a row
    scales: NDArray[Any]  # [outputs, groups]
    zeros: NDArray[np.uint8] | None  # [outputs, groups]; None: all in the middle of the codes
    # The codes of some outputs, [outputs, bytes]: unsigned, in places of `place_bits`, the first
    # in the lowest bits, and in the order of `columns`. The first output is a multiple of eight,
    # since words hold so many in some formats.
    codes: Callable[[slice], NDArray[np.uint8]]
    columns: Order | None = None  # the inputs group by group, if they are not stored so

    def rows(self) -> StoredRows:
        """Join codes, scales and zero points to rows of groups."""
        layout, group, block = integer_layout(self.kind), self.kind.group, self.kind.block
        # The file's group of each group of the rows, which may be smaller.
        stored = np.arange(-(-self.inputs // group)) * group // (self.group or self.inputs)
        made = np.zeros((len(self.scales), len(stored)), block)
        made["scale"] = self.scales[:, stored]
        if self.kind.has_zeros:
            middle = 1 << (self.kind.bits - 1)
            made["zero"] = middle if self.zeros is None else self.zeros[:, stored]
        row_bytes = len(stored) * block["codes"].itemsize
        step = max(8, ELEMENTS_AT_ONCE // self.inputs // 8 * 8)
        for start in range(0, len(made), step):
            part = slice(start, start + step)
            codes = self.codes(part)
            missing = row_bytes - codes.shape[1]
            codes = np.pad(codes, ((0, 0), (0, missing))) if missing else codes
            made["codes"][part] = codes.reshape(len(codes), len(stored), -1)
        data = made.view(np.uint8).reshape(len(made), -1)
        return StoredRows(layout, self.inputs, data, columns=self.columns)


@cache
def integer_layout(kind: IntegerKind) -> RowLayout:
    """Return the layout of rows of a kind."""
    place, middle = place_bits(kind.bits), np.float32(1 << (kind.bits - 1))

    def unscaled(blocks: NDArray[Any], out: NDArray[np.float32]) -> None:
        zeros = blocks["zero"].astype(np.float32)[..., None] if kind.has_zeros else middle
        np.subtract(unpacked(blocks["codes"], place), zeros, out=out)

    return scaled_layout(
        kind.name, kind.group, kind.block, unscaled, has_zero_points=kind.has_zeros
    )


def unpacked(data: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Split the bytes of the last axis into codes of 2 to 8 bits, the lowest bits first."""
    if bits == 8:
        return data
    top = (1 << bits) - 1
    if 8 % bits:  # eight codes in as many bytes as a code has bits
        missing = -data.shape[-1] % bits
        if missing:
            data = np.pad(data, [(0, 0)] * (data.ndim - 1) + [(0, missing)])
        parts = data.reshape(*data.shape[:-1], -1, bits).astype(np.uint64)
        joined = np.zeros(parts.shape[:-1], np.uint64)
        for place in range(bits):
            joined |= parts[..., place] << np.uint64(8 * place)
        shifts = np.arange(0, 8 * bits, bits, dtype=np.uint64)
        codes = (joined[..., None] >> shifts & np.uint64(top)).astype(np.uint8)
    else:
        codes = np.empty((*data.shape, 8 // bits), np.uint8)
        for place in range(8 // bits):
            np.bitwise_and(data >> np.uint8(bits * place), top, out=codes[..., place])
    return codes.reshape(*data.shape[:-1], -1)


def packed(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Join codes [outputs, inputs] into their places, the first in the lowest bits."""
    if place_bits(bits) == 8:
        return codes
    if codes.shape[1] % 2:
        codes = np.pad(codes, ((0, 0), (0, 1)))
    joined: NDArray[np.uint8] = codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)
    return joined


def grouped_columns(checkpoint: Checkpoint, name: str, group: int) -> Order | None:
    """Return the inputs group by group, from a tensor with each input's group.

    None if they are stored so.
    """
    owners = checkpoint.read(name)
    in_order = np.arange(len(owners)) // group
    if np.array_equal(owners, in_order):
        return None
    if not np.array_equal(np.sort(owners), in_order):
        raise CorruptFileError(
            f"does not put {group} inputs into each of the {in_order[-1] + 1} groups",
            path=checkpoint.info(name).path,
            tensor=name,
            advice="groups of other sizes are not supported; quantise the model again",
        )
    return np.argsort(owners, kind="stable").astype(np.int64)
