"""Rows of integers of 2 to 8 bits in groups, each group with a scale and mostly a zero point.

Most formats of safetensors store matrices so, each in an order of its own; here are the rows that
all of them become. The value of a code is (code - zero point) · scale; a symmetric matrix has all
zero points in the middle of the codes. A row is a run of groups: the scale, the zero point (both
float32; none if the matrix is symmetric), the codes, the first in the lowest bits.

Types such as I4By128 say what a backend must know: the bits, whether there are zero points, the
inputs of a group. I8Wide are bytes with a scale for a whole row, which is repeated, and whose
file means activations of int8 with few scales, too. In types such as I4MidBy128 the zero point is
replaced by the value of the middle code, which is added to the product. Other rows, whose groups
are no power of two, have types such as INT4.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from octavo.backends.code_bits import place_bits, unpacked
from octavo.backends.made_rows import GroupTensors, MadeRows, group_block
from octavo.backends.stored_rows import Order, RowLayout, StoredRows
from octavo.loader import Checkpoint
from octavo.loader.errors import CorruptFileError
from octavo.quant.plain import is_mapped
from octavo.quant.scaled_groups import (
    SMALL_GROUP,
    group_or_repeated,
    named_group,
    scaled_layout,
)
from octavo.quant.weight_format import ModuleMatrix

_SCALES = ("float32", "float16", "bfloat16")  # the types that backends read
_SIZES = (128, 64, 32)  # of the groups that types name


class IntegerKind(Struct, frozen=True):
    """The properties that all rows of a matrix share."""

    bits: int
    group: int  # inputs that share a scale
    has_zeros: bool
    name: str
    zeros_are_values: bool = False  # of the middle code

    @property
    def block(self) -> np.dtype[Any]:
        """The numbers of a group."""
        return group_block(self.group, self.bits, has_zeros=self.has_zeros)

    @property
    def middle(self) -> int:
        """The zero point of symmetric codes."""
        return 1 << (self.bits - 1)


def kind_of(
    bits: int,
    inputs: int,
    group: int | None,
    *,
    is_symmetric: bool,
    takes_int8: bool = False,
    zeros_are_values: bool = False,
) -> IntegerKind:
    """Choose the kind of rows; the group is that of the file, None for whole rows.

    `takes_int8` says that the file means products with activations that are int8 themselves.
    """
    is_plain = bits == 8 and group is None and is_symmetric
    if takes_int8 and is_plain and inputs % SMALL_GROUP == 0:
        return IntegerKind(bits, SMALL_GROUP, False, "I8Wide")
    size = group_or_repeated(group, inputs)
    has_zeros = not is_symmetric or bits not in (4, 8)
    named = named_group(size, inputs, _SIZES)
    if not named:
        return IntegerKind(bits, size, True, f"INT{bits}", zeros_are_values)
    zero = "Mid" if zeros_are_values else "Zero" if has_zeros else ""
    name = f"I{max(2, bits) if bits < 5 else 8}{zero}By{named}"
    return IntegerKind(bits, named, has_zeros, name, zeros_are_values)


class IntegerModule(ModuleMatrix, frozen=True):
    """The matrix of a module whose rows are integers of one kind."""

    @property
    def kind(self) -> IntegerKind:
        """The kind of the rows, known without reading them."""
        raise NotImplementedError

    @property
    def type(self) -> str:
        return self.kind.name

    @property
    def is_in_act_order(self) -> bool:
        """True if the inputs are stored in an order of their own, which is read."""
        return False


@dataclass(frozen=True)
class Codes:
    """The unsigned codes of a matrix, as `GroupTensors` describes them."""

    words: NDArray[Any]
    bits: int | None = None  # of a code in a word, if not those of the kind
    is_of_eight: bool = False
    parts: int = 0
    flipped: int = 0


@dataclass(frozen=True)
class Integers:
    """A matrix of integers, as its format has read it."""

    kind: IntegerKind
    inputs: int
    group: int | None  # inputs that share a scale in the file; None: all of a row
    scales: NDArray[Any]  # [outputs, groups]
    # [outputs, groups], bytes or as scales are; None: all in the middle of the codes
    zeros: NDArray[Any] | None
    codes: Codes
    columns: Order | None = None  # the inputs group by group, if they are not stored so

    def rows(self) -> StoredRows:
        """Return rows of groups, which join codes, scales and zero points when they are read."""
        kind, codes = self.kind, self.codes
        tensors = GroupTensors(
            inputs=self.inputs,
            codes=codes.words,
            bits=kind.bits if codes.bits is None else codes.bits,
            scales=as_scales(self.scales),
            scale_group=self.group or self.inputs,
            group=kind.group,
            has_zeros=kind.has_zeros,
            zeros=self.zeros if kind.has_zeros else None,
            middle=kind.middle,
            zeros_are_values=kind.zeros_are_values,
            columns=self.columns,
            is_of_eight=codes.is_of_eight,
            parts=codes.parts,
            flipped=codes.flipped,
        )
        return made_rows(integer_layout(kind), tensors)


def made_rows(layout: RowLayout, tensors: GroupTensors) -> StoredRows:
    """Return rows that are made of tensors when they are read."""
    mapped = tuple(each for each in (tensors.codes, tensors.scales) if is_mapped(each))
    rows, is_file = MadeRows.of(tensors, mapped), is_mapped(tensors.codes)
    return StoredRows(layout, tensors.inputs, rows, columns=tensors.columns, is_file=is_file)


def as_scales(scales: NDArray[Any]) -> NDArray[Any]:
    """Return scales in a type that a backend can read."""
    return scales if scales.dtype.name in _SCALES else scales.astype(np.float32)


@cache
def integer_layout(kind: IntegerKind) -> RowLayout:
    """Return the layout of rows of a kind."""
    place, middle = place_bits(kind.bits), np.float32(kind.middle)

    def unscaled(blocks: NDArray[Any], out: NDArray[np.float32]) -> None:
        has_points = kind.has_zeros and not kind.zeros_are_values
        zeros = blocks["zero"][..., None] if has_points else middle
        with np.errstate(all="ignore"):  # damaged zero points may be infinite or NaN
            np.subtract(unpacked(blocks["codes"], place), zeros, out=out)

    return scaled_layout(
        kind.name,
        kind.group,
        kind.block,
        unscaled,
        has_zero_points=kind.has_zeros,
        offset="zero" if kind.zeros_are_values else None,
    )


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
