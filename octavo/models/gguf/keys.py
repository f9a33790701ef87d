"""Typed access to the metadata of one GGUF file under its architecture's prefix."""

from __future__ import annotations

import math

import numpy as np

from octavo.loader import Checkpoint
from octavo.loader.errors import CorruptFileError, quote

_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


class GgufKeys:
    """The metadata keys of the file's architecture, and its tensors."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.architecture = checkpoint.metadata.string("general.architecture")

    def has(self, key: str) -> bool:
        """Return whether the architecture has this key."""
        return self._full(key) in self.checkpoint.metadata

    def whole(self, key: str, default: int | None = None) -> int:
        """Read a size or count; a list must have the same number for every block."""
        full = self._full(key)
        metadata = self.checkpoint.metadata
        if default is not None and full not in metadata:
            return default
        if full in metadata and isinstance(metadata[full], list):
            distinct = set(metadata.integers(full))
            if len(distinct) != 1:
                raise CorruptFileError(
                    f"metadata {quote(full)} differs between blocks, but the blocks of this "
                    "architecture must be alike",
                    path=metadata.path,
                )
            return distinct.pop()
        return metadata.integer(full)

    def by_block(self, key: str) -> list[int]:
        """Read a count of each block; one number is that of all blocks."""
        full, metadata = self._full(key), self.checkpoint.metadata
        if full in metadata and isinstance(metadata[full], list):
            return metadata.integers(full)
        return [metadata.integer(full)] * self.whole("block_count")

    def number(self, key: str, default: float | None = None) -> float:
        """Read a number as the shortest decimal that has the stored 32 bits."""
        full = self._full(key)
        if default is not None and full not in self.checkpoint.metadata:
            return default
        return shortest(self.checkpoint.metadata.number(full))

    def text(self, key: str, default: str) -> str:
        return self.checkpoint.metadata.string(self._full(key), default)

    def flag(self, key: str, default: bool) -> bool:
        return self.checkpoint.metadata.boolean(self._full(key), default)

    def pattern(self, key: str) -> list[bool] | int | None:
        """Read which blocks are of a kind: a flag for each, or the period of the other kind."""
        full = self._full(key)
        if full not in self.checkpoint.metadata:
            return None
        if isinstance(self.checkpoint.metadata[full], list):
            return self.checkpoint.metadata.booleans(full)
        return self.checkpoint.metadata.integer(full)

    def has_tensor(self, name: str) -> bool:
        """Return whether the file contains a tensor."""
        return name in self.checkpoint

    def rows(self, name: str, axis: int = 0) -> int:
        """Return a tensor's size along an axis."""
        shape = self.checkpoint.info(name).shape
        if axis >= len(shape):
            raise CorruptFileError(
                f"has shape {list(shape)}, but must have at least {axis + 1} dimensions",
                path=self.checkpoint.path,
                tensor=name,
            )
        return shape[axis]

    def values(self, name: str) -> list[float]:
        """Read the numbers of a small tensor."""
        array = self.checkpoint.read_float32(name)
        return [shortest(float(value)) for value in array.ravel()]

    def _full(self, key: str) -> str:
        return f"{self.architecture}.{key}"


def shortest(value: float) -> float:
    """Return the shortest decimal, as in the original config: 1e-05 for 9.99999975e-06."""
    if not math.isfinite(value) or abs(value) > _LARGEST_FLOAT32:
        return value
    narrow = np.float32(value)
    return float(str(narrow)) if float(narrow) == value else value
