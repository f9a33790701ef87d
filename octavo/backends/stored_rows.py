"""Rows of a matrix as a file stores them, and the selections that need no decoding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Order = NDArray[np.int64]


class RowLayout(Struct, frozen=True):
    """The layout of a stored row: groups of inputs side by side, each with its own scales."""

    name: str  # GGUF's where it has one (F32, BF16, Q4_K …), else the quantisation method's
    group: int  # inputs that share scales; 1 for plain numbers
    group_bytes: int
    decode: Callable[[Bytes], Floats]  # [rows, bytes] → [rows, inputs of the groups]
    has_zero_points: bool = False  # each group has an offset of its own, beside its scale
    table: bytes = b""  # float32 values of the codes, if the file states them: `decode` uses them


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
    rows: Bytes  # [stored rows, bytes of a row]; the bytes of a row are contiguous
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

    def cut(self, start: int, stop: int) -> StoredRows:
        """Return the rows from `start` to `stop`."""
        if self.order is not None:
            return replace(self, order=self.order[start:stop])
        return replace(self, rows=self.rows[start:stop])

    def reordered(self, order: Order) -> StoredRows:
        """Return the same rows in another order: row i is the old row order[i]."""
        return replace(self, order=order if self.order is None else self.order[order])

    def transposed(self) -> StoredRows:
        """Return the inputs as rows; plain numbers keep their type, others become F32."""
        size = self.layout.group_bytes
        if self.layout.group > 1 or self.columns is not None:
            return StoredRows.of(self.floats().T)
        rows = self.rows if self.order is None else self.rows[self.order]
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
        rows = self.rows[:, start // group * group_bytes : -(-stop // group) * group_bytes]
        columns = None
        if self.columns is not None:
            columns = np.argsort(np.argsort(self.columns[start:stop]))
        return replace(self, inputs=stop - start, rows=rows, columns=columns)

    def inputs_in(self, start: int, stop: int) -> Order | None:
        """Return the inputs stored from `start` to `stop`, ascending; None if they are a run."""
        return None if self.columns is None else np.sort(self.columns[start:stop])

    def floats(self) -> Floats:
        """Return the values of all rows, with rows and inputs in the matrix's order."""
        rows = self.rows if self.order is None else self.rows[self.order]
        values = self.layout.decode(rows)[:, : self.inputs]
        return values if self.columns is None else values.take(np.argsort(self.columns), axis=1)

    def addresses(self) -> NDArray[np.uint64]:
        """Return the address of each row in memory."""
        order = np.arange(len(self.rows)) if self.order is None else self.order
        start = np.uint64(self.rows.ctypes.data)
        return start + order.astype(np.uint64) * np.uint64(self.rows.strides[0])

    @property
    def span(self) -> tuple[int, int]:
        """The first address of the stored rows, and the bytes from there to the end of the last."""
        bytes_between = (len(self.rows) - 1) * self.rows.strides[0]
        return self.rows.ctypes.data, bytes_between + self.rows.shape[1]
