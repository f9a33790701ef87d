"""Panels of matrices: packed from stored rows by threads, while the caller does other things."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from octavo.backends.native import _native
from octavo.backends.native.eight_bits import eight_bits
from octavo.backends.native.row_tensors import numbers_of, row_tensors
from octavo.backends.stored_rows import StoredRows

# What this process has of a matrix: its share among the ranks, which is all without any; all in any
# case; or nothing, since another rank has all.
Held = Literal["share", "whole", "nothing"]


class MatrixRows(Struct, frozen=True):
    """The stored rows of one matrix, all of one type, and the format that they are packed in."""

    parts: Sequence[StoredRows]
    format: _native.Format
    inputs: int
    order: NDArray[np.int64] | None = None  # of all rows; -1: a row of zeros
    held: Held = "share"

    @property
    def outputs(self) -> int:
        return sum(map(len, self.parts)) if self.order is None else len(self.order)

    @property
    def is_file(self) -> bool:
        """True if the rows lie in a mapped file, so that they can be read at any time."""
        return all(part.is_file for part in self.parts)


class PackableRows:
    """Rows in a type that can be packed as they are: converted first, if need be.

    Rows that are made of tensors are made by the threads that pack them; in a type that cannot be
    packed, it is their values that are made.
    """

    def __init__(self, rows: MatrixRows) -> None:
        parts = rows.parts
        is_packed = can_pack(parts[0].type, rows.format)
        self.tensors = row_tensors(parts, has_values=not is_packed)
        if self.tensors:
            self.stored = getattr(_native.Stored, parts[0].type if is_packed else "F32")
            found = [numbers_of(part, number) for number, part in enumerate(parts)]
        else:
            parts = [part.in_memory() for part in parts]
            if not is_packed:
                is_int8 = rows.format == _native.Format.U8
                convert = eight_bits if is_int8 else lambda part: StoredRows.of(part.floats())
                parts = [convert(part) for part in parts]
            self.stored = getattr(_native.Stored, parts[0].type)
            found = [part.addresses() for part in parts]
        places = np.concatenate(found)
        factors = _factors(parts) if is_packed else None
        if rows.order is not None:
            order = np.maximum(rows.order, 0)
            places = np.where(rows.order < 0, np.uint64(0), places[order])
            factors = None if factors is None else factors[order]
        self.places = places
        self.factors = factors
        self.pages = [span for part in parts for span in part.file_spans]
        self.is_file = all(part.is_file for part in parts)
        self.owner = parts


def _factors(parts: Sequence[StoredRows]) -> NDArray[np.float32] | None:
    """Return the numbers of matrices that multiply the values of their rows, if there are any."""
    if not any(part.layout.factor is not None for part in parts):
        return None
    each = [np.float32(1) if part.layout.factor is None else part.layout.factor for part in parts]
    return np.repeat(np.array(each, np.float32), [len(part) for part in parts])


class Panels(Protocol):
    """The maker of a model's packed matrices."""

    def matrix(self, rows: MatrixRows) -> _native.Matrix:
        """Return the matrix, whose panels are complete after `finish`."""

    def begin(self) -> None:
        """Start in threads what the matrices so far need."""

    def finish(self) -> None:
        """Return when the panels of all matrices are complete."""


class FreshPanels:
    """Panels that are packed at every start; implements `Panels`.

    Rows in a file are only queued. Rows that were computed are packed at once, so that their
    memory can be freed.
    """

    def __init__(self, store: _native.Store, _team: _native.Team) -> None:
        self._store = store

    def matrix(self, rows: MatrixRows) -> _native.Matrix:
        if rows.held == "nothing":
            return self._store.absent(rows.format, rows.outputs, rows.inputs)
        found = PackableRows(rows)
        native = self._store.pack(
            type=found.stored,
            format=rows.format,
            inputs=rows.inputs,
            rows=found.places,
            owner=found.owner,
            file_pages=found.pages,
            tensors=found.tensors,
            factors=found.factors,
            whole=rows.held == "whole",
        )
        if not found.is_file:
            self.finish()
        return native

    def begin(self) -> None:
        self._store.begin()

    def finish(self) -> None:
        self._store.finish()


def can_pack(type_: str, format_: _native.Format) -> bool:
    """Return whether rows of a stored type can be packed without converting them to floats."""
    stored = getattr(_native.Stored, type_, None)
    return stored is not None and bool(_native.can_pack(stored, format_))
