"""The declaration of what a layer keeps of each sequence in the KV cache."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from octavo.layers.module import Module

# The core knows one more, keys and values of an encoder, which no layer keeps.
KVKind = Literal["full", "latent", "row", "state", "none"]


class KVSpec(Struct, frozen=True):
    """The vectors that one layer keeps, of `dim` numbers each.

    full    keys and values of each position, or of the last `window` ones
    latent  one row for each position, from which keys and values are computed (heads is 1)
    row     one row for each position, of floats as they are (heads is 1)
    state   one state for the whole sequence, of `heads` parts, kept every `checkpoint_blocks`
    none    nothing: keys and values of one layer at a time, of the running step alone
    """

    kind: KVKind
    heads: int = 0
    dim: int = 0
    window: int | None = None
    latent: int = 0  # of a latent row, the last numbers, which are its value
    checkpoint_blocks: int = 1

    @property
    def is_exact(self) -> bool:
        """True if what is kept are floats, whatever type keys and values have."""
        return self.kind in ("row", "state")

    @property
    def vectors(self) -> int:
        """The number of vectors kept for each position, or for a state."""
        return self.heads * (2 if self.kind in ("full", "none") else 1)

    def block_vectors(self, block_size: int) -> int:
        """Return the number of vectors in a block of so many positions."""
        return self.vectors if self.kind == "state" else self.vectors * block_size


class KVLayer(Module):
    """A layer that reads other positions than its own.

    `place` is set by `place_layers`: the KV group of this layer's cache, and its index there.
    """

    place: tuple[int, int]

    @property
    def kv_spec(self) -> KVSpec:
        """The declaration of what this layer keeps."""
        raise NotImplementedError
