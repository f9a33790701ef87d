"""Adapters (LoRA) as the native engine keeps them: packed in the order of the packed matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.backends.adapter_weights import AdapterSettings, AdapterWeights, Pair
from octavo.backends.adapters import check_adapter
from octavo.backends.base import Ints
from octavo.backends.native import _native
from octavo.backends.native.packing import Matrix, interleaved
from octavo.layers import Model
from octavo.program.operands import Adapters

_FORMATS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


class AdapterPacker:
    """Packs adapters of one model, in any thread."""

    def __init__(
        self, model: Model, products: Sequence[Adapters], settings: AdapterSettings
    ) -> None:
        self._model = model
        self._settings = settings
        self._products = products
        self._native = _native.AdaptedProducts()
        # By the id of a packed matrix: its number among those that adapters change.
        self.numbers: dict[int, int] = {}
        layers: dict[str, Any] = dict(model.walk())
        for product in products:
            matrix: Matrix = layers[product.path].weight
            for piece in matrix.pieces:
                self.numbers[id(piece.native)] = len(self.numbers)
            ends = np.cumsum(product.parts).tolist()
            self._native.add(product.inputs, ends, _outputs_of(matrix))

    def pack(self, weights: AdapterWeights) -> _native.PackedAdapter:
        """Copy an adapter's numbers; raise ValueError for what cannot be computed."""
        check_adapter(weights, self._products, self._settings, self._model)
        owners: list[NDArray[Any]] = []  # of the numbers, until they are copied
        parts = [self._parts(weights.pairs.get(each.path, ()), owners) for each in self._products]
        return self._native.pack(parts)

    def _parts(
        self, pairs: Sequence[Pair | None], owners: list[NDArray[Any]]
    ) -> _native.AdapterParts:
        """Describe what an adapter has for one product; equal first matrices count once."""
        dtype = self._dtype(pairs)
        downs: list[tuple[int, int, float]] = []
        ups: list[tuple[int, int]] = []
        known: dict[tuple[int, float], int] = {}
        for pair in pairs:
            if pair is None:
                ups.append((0, 0))
                continue
            key = (id(pair.down), pair.scale)
            if key not in known:
                known[key] = len(downs)
                down = np.ascontiguousarray(pair.down, dtype)
                owners.append(down)
                downs.append((down.ctypes.data, len(down), pair.scale))
            up = np.ascontiguousarray(pair.up, dtype)
            owners.append(up)
            ups.append((up.ctypes.data, known[key]))
        return _native.AdapterParts(getattr(_native.Format, _FORMATS[dtype.name]), downs, ups)

    def _dtype(self, pairs: Sequence[Pair | None]) -> np.dtype[Any]:
        """Return the type in which a product's pairs are kept: their own, unless it is set."""
        if self._settings.dtype != "auto":
            wanted: np.dtype[Any] = np.dtype(_numpy_name(self._settings.dtype))
            return wanted
        found = {matrix.dtype for pair in pairs if pair is not None for matrix in pair[:2]}
        only: np.dtype[Any] = found.pop() if len(found) == 1 else np.dtype(np.float32)
        return only if only.name in _FORMATS else np.dtype(np.float32)


def _numpy_name(name: str) -> Any:
    if name != "bfloat16":
        return name
    import ml_dtypes  # here, since few engines have adapters

    return ml_dtypes.bfloat16


def _outputs_of(matrix: Matrix) -> list[Ints]:
    """Return which output each row of each packed piece has; -1: it is a row of zeros."""
    if matrix.gated:
        return [interleaved(matrix.outputs // 2).astype(np.int32)]
    return [
        np.arange(piece.first, piece.first + piece.native.outputs, dtype=np.int32)
        for piece in matrix.pieces
    ]
