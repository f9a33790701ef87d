"""What converters to GGUF change in a tensor, each with the way back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.loader.errors import TensorMismatchError

Floats = NDArray[np.float32]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Heads:
    """The numbers that rearranged rows depend on."""

    heads: int
    kv_heads: int


class Undo(Protocol):
    """From the stored tensors (one, seldom more) to the original one."""

    @property
    def moves_rows(self) -> bool:
        """Whether rows keep what is in them, and at most stand in another order."""

    def shape(self, stored: Sequence[Shape]) -> Shape:
        """The original's shape."""

    def values(self, stored: Sequence[Floats], heads: Heads) -> Floats:
        """The original's values."""


@dataclass(frozen=True, slots=True)
class AsStored:
    """Nothing was changed."""

    moves_rows: ClassVar[bool] = True

    def shape(self, stored: Sequence[Shape]) -> Shape:
        return stored[0]

    def values(self, stored: Sequence[Floats], heads: Heads) -> Floats:
        return stored[0]


@dataclass(frozen=True, slots=True)
class PairedRows:
    """Each head's rows i and i + half were put side by side, for a rotation of neighbours."""

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


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Rows that went KV head by KV head (its queries, its key, its value) were sorted by kind."""

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


@dataclass(frozen=True, slots=True)
class PlusOne:
    """One was added, because the model multiplies by 1 + weight."""

    moves_rows: ClassVar[bool] = False

    def shape(self, stored: Sequence[Shape]) -> Shape:
        return stored[0]

    def values(self, stored: Sequence[Floats], heads: Heads) -> Floats:
        return stored[0] - np.float32(1)


@dataclass(frozen=True, slots=True)
class Transposed:
    """[in, out] became [out, in]."""

    moves_rows: ClassVar[bool] = False

    def shape(self, stored: Sequence[Shape]) -> Shape:
        *rest, rows, columns = _at_least(2, stored[0])
        return (*rest, columns, rows)

    def values(self, stored: Sequence[Floats], heads: Heads) -> Floats:
        return np.ascontiguousarray(stored[0].swapaxes(-1, -2))


@dataclass(frozen=True, slots=True)
class OneRow:
    """A matrix of one row may have lost that axis."""

    moves_rows: ClassVar[bool] = False

    def shape(self, stored: Sequence[Shape]) -> Shape:
        return (1, *stored[0]) if len(stored[0]) == 1 else stored[0]

    def values(self, stored: Sequence[Floats], heads: Heads) -> Floats:
        return stored[0].reshape(self.shape([stored[0].shape]))


@dataclass(frozen=True, slots=True)
class Interleaved:
    """Gate and up were alternate outputs of one matrix [expert, in, out], or of one bias."""

    moves_rows: ClassVar[bool] = False

    def shape(self, stored: Sequence[Shape]) -> Shape:
        gate, up = (_at_least(2, shape) for shape in stored)
        if gate != up:
            raise TensorMismatchError(f"gate has shape {list(gate)} and up has {list(up)}")
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
            f"has shape {list(shape)}, and must have at least {dimensions} dimensions"
        )
    return shape


def _divide(number: int, count: int, what: str) -> None:
    if count == 0 or number % count:
        raise TensorMismatchError(f"{number:,} rows or heads do not divide into {what}")
