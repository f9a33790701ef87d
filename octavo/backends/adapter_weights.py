"""The weights of an adapter (LoRA) as a backend gets them, in the order of its own rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from octavo.backends.stored_rows import StoredRows


class Pair(NamedTuple):
    """The two matrices of one part of a projection, to which `scale` times `up @ down` is added.

    Where one pair of a file covers several parts of a projection, these share one `down`: the same
    array, so that what it gives is computed once.
    """

    down: NDArray[Any]  # [rank, inputs]: float32, bfloat16 or float16
    up: NDArray[Any]  # [rows of the part, rank], in the layer's own order of rows
    scale: float  # alpha / rank, or alpha / sqrt(rank)
    # [rows of the part] float32: the length that each row of the weight gets (DoRA), this pair's
    # product included. None: rows have the length that follows.
    magnitude: NDArray[np.float32] | None = None


class Bias(NamedTuple):
    """Changes of the bias of one part of a projection: [rows of the part] float32."""

    added: NDArray[np.float32] | None = None  # to the outputs
    own: NDArray[np.float32] | None = None  # in place of the layer's


class Whole(NamedTuple):
    """A matrix of an adapter's own, in place of that of the head or of the embedding."""

    rows: StoredRows
    bias: NDArray[np.float32] | None = None  # [outputs]; None: the layer's, if it has one


class AdapterWeights(Struct, frozen=True, eq=False):
    """The pairs and the biases of an adapter, for every projection that it changes.

    An embedding is like a projection of as many inputs as there are tokens, one of which is 1.

    The arrays may be views of a mapped file, whose numbers are known to be finite. What a backend
    packs holds on to none of them, so that the file is given up.
    """

    # The path of a projection in `Model.walk()` → a pair, or None, for each of its `parts`.
    pairs: Mapping[str, tuple[Pair | None, ...]]
    rank: int  # the largest
    # Likewise a bias, or None.
    biases: Mapping[str, tuple[Bias | None, ...]] = {}
    wholes: Mapping[str, Whole] = {}

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all projections that it changes."""
        return tuple(dict.fromkeys((*self.pairs, *self.biases, *self.wholes)))


class AdapterSettings(Struct, frozen=True):
    """The adapters that a backend must have room for."""

    slots: int  # adapters that rows of one batch may have
    max_rank: int
    # Paths of projections, of the head and of the embedding; None: all of them.
    targets: tuple[str, ...] | None = None
    wholes: bool = False  # the head and the embedding may be an adapter's own
    dtype: str = "auto"  # of the packed numbers; auto: the backend's own choice
