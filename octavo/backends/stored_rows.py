"""Rows of a matrix as a file stores them, and the selections that need no decoding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from octavo.backends.code_bits import Bytes as Bytes
from octavo.backends.made_rows import MadeRows
from octavo.backends.made_rows import Order as Order

Floats = NDArray[np.float32]


class RowLayout(Struct, frozen=True):
    """The layout of a stored row: groups of inputs side by side, each with its own scales."""

    name: str  # GGUF's where it has one (F32, BF16, Q4_K …), else the quantisation method's
    group: int  # inputs that share scales; 1 for plain numbers
    group_bytes: int
    decode: Callable[[Bytes], Floats]  # [rows, bytes] → [rows, inputs of the groups]
    has_zero_points: bool = False  # each group has an offset of its own, beside its scale
    table: bytes = b""  # numbers that the file states and `decode` uses, such as values of codes
    factor: np.float32 | None = None  # of all values, which `decode` multiplies too
    # By which the file has the inputs of products rounded to eight bits, if it says so.
    input_scale: float | None = None


def _decode_floats(rows: Bytes) -> Floats:
    return rows.view(np.float32)


FLOAT_LAYOUT = RowLayout("F32", 1, 4, _decode_floats)


class StoredRows(Struct, frozen=True):
    """Rows of a matrix in the bytes of their format.

    Row i is `rows[order[i]]`, and its j-th stored input is the matrix's input `columns[j]`; None
    means the stored order. A last group may be longer than the inputs that are left for it.
    """

    layout: RowLayout
    inputs: int
    # [stored rows, bytes of a row], where the bytes of a row are contiguous; or how they are made.
    rows: Bytes | MadeRows
    order: Order | None = None
    columns: Order | None = None
    is_file: bool = False  # in a mapped file, whose pages can be dropped and read again

    @classmethod
    def of(cls, floats: Floats) -> StoredRows:
        """Make rows of an array [rows, inputs] in memory."""
        floats = np.ascontiguousarray(floats, np.float32)
        return cls(FLOAT_LAYOUT, floats.shape[1], floats.view(np.uint8))

    def __len__(self) -> int:
        return len(self.rows if self.order is None else self.order)

    @property
    def type(self) -> str:
        return self.layout.name

    @property
    def num_bytes(self) -> int:
        """The size of these rows as stored."""
        row_bytes: int = self.rows.shape[1]
        return len(self) * row_bytes

    def in_memory(self) -> StoredRows:
        """Return the same rows, in an array if they are still to be made."""
        if not isinstance(self.rows, MadeRows):
            return self
        return replace(self, rows=self.rows.read(), is_file=False)

    @property
    def array(self) -> Bytes:
        """The bytes of all stored rows, which are made now if they are not in memory."""
        return self.rows.read() if isinstance(self.rows, MadeRows) else self.rows

    def cut(self, start: int, stop: int) -> StoredRows:
        """Return the rows from `start` to `stop`."""
        if self.order is not None:
            return replace(self, order=self.order[start:stop])
        rows = self.rows
        cut = rows.cut(start, stop) if isinstance(rows, MadeRows) else rows[start:stop]
        return replace(self, rows=cut)

    def reordered(self, order: Order) -> StoredRows:
        """Return the same rows in another order: row i is the old row order[i]."""
        return replace(self, order=order if self.order is None else self.order[order])

    def transposed(self) -> StoredRows:
        """Return the inputs as rows; plain numbers keep their type, others become F32."""
        size = self.layout.group_bytes
        if self.layout.group > 1 or self.columns is not None:
            return StoredRows.of(self.floats().T)
        rows = self.array if self.order is None else self.array[self.order]
        numbers = rows[:, : self.inputs * size].reshape(len(self), self.inputs, size)
        turned = np.ascontiguousarray(numbers.swapaxes(0, 1))
        return StoredRows(self.layout, len(self), turned.reshape(self.inputs, -1))

    def cut_inputs(self, start: int, stop: int) -> StoredRows:
        """Return all rows with only their stored inputs from `start` to `stop`.

        Both must be borders of groups. Inputs that are stored in an order of their own keep their
        order among themselves; `inputs_in` says which they are.
        """
        group, group_bytes = self.layout.group, self.layout.group_bytes
        for border in (start, stop):
            if border % group and border != self.inputs:
                raise ValueError(f"input {border} is inside a group of {group}")
        first, end, rows = start // group, -(-stop // group), self.rows
        if isinstance(rows, MadeRows):
            rows = rows.cut_groups(first, end)
        else:
            rows = rows[:, first * group_bytes : end * group_bytes]
        columns = None
        if self.columns is not None:
            columns = np.argsort(np.argsort(self.columns[start:stop]))
        return replace(self, inputs=stop - start, rows=rows, columns=columns)

    def inputs_in(self, start: int, stop: int) -> Order | None:
        """Return the inputs stored from `start` to `stop`, ascending; None if they are a run."""
        return None if self.columns is None else np.sort(self.columns[start:stop])

    def floats(self) -> Floats:
        """Return the values of all rows, with rows and inputs in the matrix's order."""
        rows = self.array if self.order is None else self.array[self.order]
        values = self.layout.decode(rows)[:, : self.inputs]
        return values if self.columns is None else values.take(np.argsort(self.columns), axis=1)

    def indices(self) -> Order:
        """Return which of the stored rows each row is."""
        return np.arange(len(self.rows)) if self.order is None else self.order

    def addresses(self) -> NDArray[np.uint64]:
        """Return the address of each row in memory."""
        array = self.array
        start = np.uint64(array.ctypes.data)
        return start + self.indices().astype(np.uint64) * np.uint64(array.strides[0])

    @property
    def file_spans(self) -> list[tuple[int, int]]:
        """The address and the bytes of each part of a mapped file that the rows are read from."""
        if not self.is_file or not len(self):
            return []
        arrays = self.rows.mapped if isinstance(self.rows, MadeRows) else (self.rows,)
        return [_span(array) for array in arrays]


def _span(array: NDArray[Any]) -> tuple[int, int]:
    """Return the first address of an array, and the bytes from there to the end of the last."""
    sizes = zip(array.shape, array.strides, strict=True)
    bytes_before_last = sum((count - 1) * stride for count, stride in sizes)
    return array.ctypes.data, bytes_before_last + array.itemsize
