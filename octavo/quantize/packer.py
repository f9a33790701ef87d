"""The interface of a type that weights are quantised to: the tensors of a matrix, and its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float32]

# Values of a block of rows, so that temporary arrays stay in a core's own cache.
BLOCK_VALUES = 1 << 16


class Part(Struct, frozen=True):
    """One of the tensors that a matrix is stored in."""

    ending: str  # of its name, behind the module's
    type: str  # as safetensors names it
    shape: tuple[int, ...]
    has_rows: bool = True  # its rows are those of the matrix; False: it is about the whole matrix


class Packer(Protocol):
    """A type of weights, with its settings.

    Rows are independent of each other, so they may be packed in blocks of any size.
    """

    @property
    def group(self) -> int:
        """The number that the inputs of a matrix must be a multiple of."""

    @property
    def needs_peak(self) -> bool:
        """True if matrices that are computed together share a scale, which their peak gives."""

    def settings(self) -> dict[str, Any]:
        """Return the weights' part of a group in a quantization_config."""

    def parts(self, shape: tuple[int, int], scale_type: str) -> tuple[Part, ...]:
        """Return the tensors of a matrix; scales that are floats have the type of its values."""

    def pack(self, values: Floats, scale_type: str, peak: float) -> Mapping[str, Array]:
        """Quantise some rows; return the rows of each part that has rows, by its ending."""

    def whole(self, shape: tuple[int, int], peak: float) -> Mapping[str, Array]:
        """Return the parts that are about the whole matrix, by their endings."""
