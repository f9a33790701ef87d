"""What one GGUF file says about its model: typed access to the keys of its architecture."""

from __future__ import annotations

import math

import numpy as np

from octavo.loader import Checkpoint
from octavo.loader.errors import CorruptFileError, quote

_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


class Facts:
    """Metadata under the architecture's prefix, and which tensors there are."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.architecture = checkpoint.metadata.string("general.architecture")

    def has(self, key: str) -> bool:
        """Whether the architecture's key is there."""
        return self._full(key) in self.checkpoint.metadata

    def whole(self, key: str, default: int | None = None) -> int:
        """A size or count; a list that says the same for every block is one number."""
        full = self._full(key)
        metadata = self.checkpoint.metadata
        if default is not None and full not in metadata:
            return default
        if full in metadata and isinstance(metadata[full], list):
            distinct = set(metadata.integers(full))
            if len(distinct) != 1:
                raise CorruptFileError(
                    f"metadata {quote(full)} differs from block to block, and this architecture's "
                    "blocks are all alike",
                    path=metadata.path,
                )
            return distinct.pop()
        return metadata.integer(full)

    def number(self, key: str, default: float | None = None) -> float:
        """A number, as the shortest decimal that the stored 32 bits stand for."""
        full = self._full(key)
        if default is not None and full not in self.checkpoint.metadata:
            return default
        return shortest(self.checkpoint.metadata.number(full))

    def text(self, key: str, default: str) -> str:
        """A string."""
        return self.checkpoint.metadata.string(self._full(key), default)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        return self.checkpoint.metadata.boolean(self._full(key), default)

    def pattern(self, key: str) -> list[bool] | int | None:
        """Which blocks are of a kind: one flag a block, or every how many one is not."""
        full = self._full(key)
        if full not in self.checkpoint.metadata:
            return None
        if isinstance(self.checkpoint.metadata[full], list):
            return self.checkpoint.metadata.booleans(full)
        return self.checkpoint.metadata.integer(full)

    def has_tensor(self, name: str) -> bool:
        """Whether the file holds a tensor."""
        return name in self.checkpoint

    def rows(self, name: str, axis: int = 0) -> int:
        """A tensor's size along an axis."""
        shape = self.checkpoint.info(name).shape
        if axis >= len(shape):
            raise CorruptFileError(
                f"has shape {list(shape)}, and must have at least {axis + 1} dimensions",
                path=self.checkpoint.path,
                tensor=name,
            )
        return shape[axis]

    def values(self, name: str) -> list[float]:
        """A small tensor's numbers."""
        array = self.checkpoint.read_float32(name)
        return [shortest(float(value)) for value in array.ravel()]

    def _full(self, key: str) -> str:
        return f"{self.architecture}.{key}"


def shortest(value: float) -> float:
    """1e-05 for the 32 bits of 9.99999975e-06: what the original configuration said."""
    if not math.isfinite(value) or abs(value) > _LARGEST_FLOAT32:
        return value
    narrow = np.float32(value)
    return float(str(narrow)) if float(narrow) == value else value
