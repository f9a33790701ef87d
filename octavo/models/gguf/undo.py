"""The changes that converters to GGUF make to tensors, and their inverses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from octavo.loader.errors import TensorMismatchError

Floats = NDArray[np.float32]
Shape = tuple[int, ...]


class Heads(Struct, frozen=True):
    """The numbers of heads, which the order of rows depends on."""

    heads: int
    kv_heads: int


class Undo(Protocol):
    """The inverse of a conversion, from the stored tensors (mostly one) to the original."""

    @property
    def moves_rows(self) -> bool:
        """True if whole rows move and their values stay the same."""

    def shape(self, stored: Sequence[Shape]) -> Shape:
        """Return the shape of the original."""

    def values(self, stored: Sequence[Floats], heads: Heads) -> Floats:
        """Return the values of the original."""


class AsStored(Struct, frozen=True):
    """A tensor that was not changed."""

    moves_rows: ClassVar[bool] = True

    def shape(self, stored: Sequence[Shape]) -> Shape:
        return stored[0]

    def values(self, stored: Sequence[Floats], heads: Heads) -> Floats:
        return stored[0]


class PairedRows(Struct, frozen=True):
    """A change that puts rows i and i + half of each head side by side, to rotate neighbours."""

    moves_rows: ClassVar[bool] = True
    of: Literal["heads", "kv_heads"]

    def shape(self, stored: Sequence[Shape]) -> Shape:
        return stored[0]

    def values(self, stored: Sequence[Floats], heads: Heads) -> Floats:
        count = heads.heads if self.of == "heads" else heads.kv_heads
        rows, *rest = _at_least(1, stored[0].shape)
        _divide(rows, 2 * count, f"{count} heads of an even size")
        pairs = stored[0].reshape(count, rows // count // 2, 2, *rest)
        return pairs.swapaxes(1, 2).reshape(stored[0].shape)


class GroupedRows(Struct, frozen=True):
    """A change that sorts rows by kind, from groups of a KV head (queries, key, value)."""

    moves_rows: ClassVar[bool] = True

    def shape(self, stored: Sequence[Shape]) -> Shape:
        return stored[0]

    def values(self, stored: Sequence[Floats], heads: Heads) -> Floats:
        rows, *rest = _at_least(1, stored[0].shape)
        total = heads.heads + 2 * heads.kv_heads
        _divide(rows, total, f"{heads.heads} heads and twice {heads.kv_heads} KV heads")
        _divide(heads.heads, heads.kv_heads, f"{heads.kv_heads} groups")
        by_head = stored[0].reshape(total, rows // total, *rest)
        parts = np.split(by_head, (heads.heads, heads.heads + heads.kv_heads))
        grouped = [part.reshape(heads.kv_heads, -1, rows // total, *rest) for part in parts]
        return np.concatenate(grouped, axis=1).reshape(stored[0].shape)


class PlusOne(Struct, frozen=True):
    """A change that adds one, because the model multiplies by 1 + weight."""

    moves_rows: ClassVar[bool] = False

    def shape(self, stored: Sequence[Shape]) -> Shape:
        return stored[0]

    def values(self, stored: Sequence[Floats], heads: Heads) -> Floats:
        return stored[0] - np.float32(1)


class Transposed(Struct, frozen=True):
    """A change from [in, out] to [out, in]."""

    moves_rows: ClassVar[bool] = False

    def shape(self, stored: Sequence[Shape]) -> Shape:
        *rest, rows, columns = _at_least(2, stored[0])
        return (*rest, columns, rows)

    def values(self, stored: Sequence[Floats], heads: Heads) -> Floats:
        return np.ascontiguousarray(stored[0].swapaxes(-1, -2))


class OneRow(Struct, frozen=True):
    """A change that may remove the axis of the one row that matrices have."""

    moves_rows: ClassVar[bool] = False
    axis: int = 0

    def shape(self, stored: Sequence[Shape]) -> Shape:
        shape = _at_least(self.axis + 1, stored[0])
        if len(shape) > self.axis + 1:
            return shape
        return (*shape[: self.axis], 1, *shape[self.axis :])

    def values(self, stored: Sequence[Floats], heads: Heads) -> Floats:
        return stored[0].reshape(self.shape([stored[0].shape]))


class Interleaved(Struct, frozen=True):
    """A change that splits the alternating gate and up outputs of a matrix or bias."""

    moves_rows: ClassVar[bool] = False

    def shape(self, stored: Sequence[Shape]) -> Shape:
        gate, up = (_at_least(2, shape) for shape in stored)
        if gate != up:
            raise TensorMismatchError(
                f"gate has shape {list(gate)}, but up has {list(up)}; they must be equal"
            )
        experts, rows, *rest = gate
        return (experts, *rest, 2 * rows)

    def values(self, stored: Sequence[Floats], heads: Heads) -> Floats:
        joined = np.stack(stored, axis=2)
        joined = joined.reshape(len(joined), -1, *stored[0].shape[2:])
        return np.ascontiguousarray(joined.swapaxes(1, -1)) if joined.ndim == 3 else joined


AS_STORED = AsStored()


def _at_least(dimensions: int, shape: Shape) -> Shape:
    if len(shape) < dimensions:
        raise TensorMismatchError(
            f"has shape {list(shape)}, but must have at least {dimensions} dimensions"
        )
    return shape


def _divide(number: int, count: int, what: str) -> None:
    if count == 0 or number % count:
        raise TensorMismatchError(f"{number:,} rows or heads do not divide into {what}")
