"""Rows that are made of several tensors of a file when they are read: codes, scales, zero points.

A row is a run of groups of inputs, each with its scale, its zero point (both float32; unless there
are none) and its codes in places of 4 or 8 bits, the first in the lowest bits. What is kept
are the tensors. `MadeRows.read` makes the bytes with numpy; a backend may make the same bytes of
`MadeRows.tensors` itself, a few rows at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from octavo.backends.code_bits import ELEMENTS_AT_ONCE, Bytes, packed, place_bits, unpacked

Order = NDArray[np.int64]

EIGHT = 8  # outputs of a word
# The bits by which a word is shifted for each of its outputs, whose order, from the lowest bits on,
# is 0, 2, 4, 6, 1, 3, 5, 7.
_SHIFTS = 4 * np.argsort([0, 2, 4, 6, 1, 3, 5, 7]).astype(np.uint32)


class GroupTensors(Struct, frozen=True):
    """The tensors of a matrix, in any strides, and how the codes lie in theirs."""

    inputs: int
    # [outputs, words of consecutive inputs, the first lowest], of 8 or 32 bits; or, of eight
    # outputs, [outputs / 8, inputs], in words of 32 bits with four for each output; or, of several
    # parts, [groups of a part, inputs of a group]: all outputs' groups one after the other, in as
    # many equal parts as a word has codes, the last filled up. The first part's are the highest.
    codes: NDArray[Any]
    bits: int
    scales: NDArray[Any]  # [outputs / scale_outputs, groups of the file], of float types
    scale_group: int  # inputs that share a scale in the file
    group: int  # inputs of a group of the rows, which may be a part of the file's
    has_zeros: bool = False  # the rows have zero points
    zeros: NDArray[Any] | None = (
        None  # [outputs, groups of the file], bytes or floats; None: `middle`
    )
    middle: int = 0
    zeros_are_values: bool = False  # of the codes `middle`
    columns: Order | None = None  # the file's input for each of the rows'; None: the same
    scale_outputs: int = 1  # that share a scale
    is_of_eight: bool = False
    parts: int = 0  # codes in a word, one of each part; 0: words have codes of one part
    flipped: int = 0  # bits of bytes of codes that are stored inverted
    # The values of the codes, which the scale multiplies; None: a code less its zero point.
    table: NDArray[np.float32] | None = None

    @property
    def num_outputs(self) -> int:
        if self.parts:
            return len(self.scales) * self.scale_outputs
        return len(self.codes) * (EIGHT if self.is_of_eight else 1)

    @property
    def block(self) -> np.dtype[Any]:
        """The numbers of a group of the rows."""
        return group_block(self.group, self.bits, has_zeros=self.has_zeros)

    def codes_of(self, start: int, stop: int) -> Bytes:
        """Read the codes of some outputs into their places: [outputs, bytes of a row]."""
        if self.parts:
            found = self._codes_of_parts(start, stop)
        elif self.is_of_eight:
            first = start // EIGHT
            found = codes_of_eight(self.codes[first : -(-stop // EIGHT)])
            found = found[start - first * EIGHT : stop - first * EIGHT]
        else:
            stored = np.ascontiguousarray(self.codes[start:stop]).view(np.uint8)
            if self.flipped:
                stored = stored ^ np.uint8(self.flipped)
            if self.columns is None and self.bits in (4, 8):
                return stored[:, : -(-self.inputs * self.bits // 8)]
            found = unpacked(stored, self.bits)
        found = found[:, : self.inputs]
        return packed(found if self.columns is None else found[:, self.columns], self.bits)

    def _codes_of_parts(self, start: int, stop: int) -> Bytes:
        groups = self.inputs // self.scale_group
        numbers = np.arange(start * groups, stop * groups)
        part, place = np.divmod(numbers, len(self.codes))
        shifts = self.bits * (self.parts - 1 - part)
        words = self.codes[place].astype(np.uint32)
        codes = words >> shifts[:, None].astype(np.uint32) & np.uint32((1 << self.bits) - 1)
        return codes.astype(np.uint8).reshape(stop - start, self.inputs)


class MadeRows(Struct, frozen=True):
    """Some rows and groups of a matrix, read with each call of `read`."""

    tensors: GroupTensors
    start: int
    stop: int
    first_group: int
    end_group: int
    mapped: tuple[NDArray[Any], ...] = ()  # the tensors that lie in a mapped file

    @classmethod
    def of(cls, tensors: GroupTensors, mapped: tuple[NDArray[Any], ...] = ()) -> MadeRows:
        """Make all rows of a matrix."""
        groups = -(-tensors.inputs // tensors.group)
        return cls(tensors, 0, tensors.num_outputs, 0, groups, mapped)

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows, and the bytes of a row."""
        return len(self), (self.end_group - self.first_group) * self.tensors.block.itemsize

    @property
    def window(self) -> tuple[int, int, int, int]:
        """The rows and groups that these are."""
        return self.start, self.stop, self.first_group, self.end_group

    def cut(self, start: int, stop: int) -> MadeRows:
        """Return the rows from `start` to `stop`, as far as there are any."""
        start, stop, _ = slice(start, stop).indices(len(self))
        return replace(self, start=self.start + start, stop=self.start + max(start, stop))

    def cut_groups(self, start: int, stop: int) -> MadeRows:
        """Return all rows with only their groups from `start` to `stop`."""
        first = self.first_group
        return replace(self, first_group=first + start, end_group=first + stop)

    def read(self) -> Bytes:
        """Join codes, scales and zero points to the bytes of the rows."""
        tensors, block, count = self.tensors, self.tensors.block, self.end_group - self.first_group
        groups = np.arange(self.first_group, self.end_group) * tensors.group // tensors.scale_group
        outputs = np.arange(self.start, self.stop)
        made = np.zeros((len(self), count), block)
        made["scale"] = tensors.scales[(outputs // tensors.scale_outputs)[:, None], groups]
        if tensors.has_zeros:
            zeros = tensors.zeros
            made["zero"] = tensors.middle if zeros is None else zeros[outputs[:, None], groups]
        group_bytes = block["codes"].itemsize
        begin, end = self.first_group * group_bytes, self.end_group * group_bytes
        step = max(EIGHT, ELEMENTS_AT_ONCE // tensors.inputs // EIGHT * EIGHT)
        for start in range(0, len(self), step):
            part = made["codes"][start : start + step]
            first = self.start + start
            codes = tensors.codes_of(first, first + len(part))[:, begin:end]
            missing = end - begin - codes.shape[1]
            codes = np.pad(codes, ((0, 0), (0, missing))) if missing else codes
            part[:] = codes.reshape(len(codes), count, -1)
        return made.view(np.uint8).reshape(len(self), -1)


def codes_of_eight(words: NDArray[Any]) -> Bytes:
    """Split words [outputs / 8, n] with four bits of each output into codes [outputs, n]."""
    rows = np.ascontiguousarray(words).view(np.uint32)
    codes = (rows[:, None, :] >> _SHIFTS[:, None] & 15).astype(np.uint8)
    return codes.reshape(-1, words.shape[1])


def group_block(group: int, bits: int, *, has_zeros: bool) -> np.dtype[Any]:
    """Return the numbers of a group of this many inputs."""
    zero = [("zero", "<f4")] if has_zeros else []
    return np.dtype([("scale", "<f4"), *zero, ("codes", "u1", group * place_bits(bits) // 8)])
