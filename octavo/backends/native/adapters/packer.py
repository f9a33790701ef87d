"""Adapters (LoRA) as the native engine keeps them: packed in the order of the packed matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.backends.adapter_weights import AdapterSettings, AdapterWeights, Pair, Whole
from octavo.backends.adapters import check_adapter, part_changes
from octavo.backends.base import Ints
from octavo.backends.native import _native
from octavo.backends.native.packing import Matrix, Packer, Vector, interleaved
from octavo.layers import Embedding, Model
from octavo.program.operands import Adapters

_MOST_THREADS = 4  # that pack, beside the steps, whose threads they take processors from
# The path of a layer, one of its pieces, and the first and the number of that one's rows.
ReadRows = Callable[[str, int, int, int], NDArray[np.float32]]
_FORMATS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


class AdapterPacker:
    """Packs adapters of one model, in any thread."""

    def __init__(
        self,
        model: Model,
        products: Sequence[Adapters],
        settings: AdapterSettings,
        team: _native.Team,
        new_packer: Callable[[], Packer],
        read_rows: ReadRows,
    ) -> None:
        self._num_threads = min(team.size, _MOST_THREADS)
        self._read_rows = read_rows
        self._new_packer = new_packer  # of matrices in place of the model's
        self._model = model
        self._settings = settings
        self._products = products
        self._native = _native.AdaptedProducts(team)
        # By the id of a packed matrix: its number among those that adapters change.
        self.numbers: dict[int, int] = {}
        self._layers: dict[str, Any] = dict(model.walk())
        for product in products:
            if product.is_lookup:
                self._native.add(product.inputs, list(product.parts), [], is_lookup=True)
                continue
            matrix: Matrix = self._layers[product.path].weight
            for piece in matrix.pieces:
                self.numbers[id(piece.native)] = len(self.numbers)
            ends = np.cumsum(product.parts).tolist()
            self._native.add(product.inputs, ends, _outputs_of(matrix))

    def pack(self, weights: AdapterWeights) -> _native.PackedAdapter:
        """Copy an adapter's numbers; raise ValueError for what cannot be computed."""
        check_adapter(weights, self._products, self._settings, self._model)
        owners: list[Any] = []  # of the numbers, until they are copied
        parts = [self._parts(weights, each, owners) for each in self._products]
        return self._native.pack(parts, self._num_threads)

    def _parts(
        self, weights: AdapterWeights, product: Adapters, owners: list[Any]
    ) -> _native.AdapterParts:
        """Describe what an adapter has for one product; equal first matrices count once."""
        whole = weights.wholes.get(product.path)
        if product.path not in weights.paths or whole is not None:
            parts = _native.AdapterParts(_native.Format.F32, [], [])
            if whole is not None:
                self._set_whole(parts, whole, self._layers[product.path], owners)
            return parts
        if product.is_lookup:
            return self._lookup(weights.pairs[product.path][0], owners)
        pairs = weights.pairs.get(product.path, (None,) * len(product.parts))
        dtype = self._dtype(pairs)
        downs: list[tuple[int, int, float]] = []
        ups: list[tuple[int, int, int, int]] = []
        known: dict[tuple[int, float], int] = {}
        base = self._layers[product.path]
        base_rows = BaseRows(base.weight, partial(self._read_rows, product.path))
        changes = part_changes(weights, product, base_rows, _bias_of(base))
        for pair, change in zip(pairs, changes, strict=True):
            numbers = _address(change.growth, owners), _address(change.addend, owners)
            if pair is None:
                ups.append((0, 0, *numbers))
                continue
            key = (id(pair.down), pair.scale)
            if key not in known:
                known[key] = len(downs)
                down = np.ascontiguousarray(pair.down, dtype)
                owners.append(down)
                downs.append((down.ctypes.data, len(down), pair.scale))
            up = np.ascontiguousarray(pair.up, dtype)
            owners.append(up)
            ups.append((up.ctypes.data, known[key], *numbers))
        return _native.AdapterParts(getattr(_native.Format, _FORMATS[dtype.name]), downs, ups)

    def _set_whole(
        self, parts: _native.AdapterParts, whole: Whole, layer: Any, owners: list[Any]
    ) -> None:
        """Pack a matrix in place of a layer's as that was packed."""
        packer = self._new_packer()
        (piece,) = packer.matrix([whole.rows], layer).pieces
        packer.finish()
        owners.append(packer)
        base = None if isinstance(layer, Embedding) else _bias_of(layer)
        bias = base if whole.bias is None else whole.bias
        parts.set_whole(piece.native, _address(bias, owners))

    def _lookup(self, pair: Pair | None, owners: list[Any]) -> _native.AdapterParts:
        """Describe what an adapter adds to looked-up rows: low numbers of each token, and addends.

        The kernels make addends as other products' low numbers.
        """
        assert pair is not None
        dtype = self._dtype([pair])
        lows = np.ascontiguousarray(pair.down.T, np.float32)
        up = np.ascontiguousarray(pair.up, dtype)
        owners += [lows, up]
        first = (lows.ctypes.data, lows.shape[1], pair.scale)
        format_ = getattr(_native.Format, _FORMATS[dtype.name])
        return _native.AdapterParts(format_, [first], [(up.ctypes.data, 0, 0, 0)])

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


def _address(values: NDArray[np.float32] | None, owners: list[Any]) -> int:
    if values is None:
        return 0
    kept = np.ascontiguousarray(values, np.float32)
    owners.append(kept)
    address: int = kept.ctypes.data
    return address


def _bias_of(layer: Any) -> NDArray[np.float32] | None:
    bias: Vector | None = layer.bias if layer.has_bias else None
    return None if bias is None else bias.values


class BaseRows:
    """The numbers of a matrix, whose order is found once, and only if any are asked for.

    `read` returns rows of a piece: their number is the second argument, behind the first's.
    """

    def __init__(
        self, matrix: Matrix, read: Callable[[int, int, int], NDArray[np.float32]]
    ) -> None:
        self._matrix = matrix
        self._read = read

    @cached_property
    def _orders(self) -> list[tuple[Ints, NDArray[np.intp] | None]]:
        """The outputs of each piece's rows, and where their inputs are; None: in their order."""
        pieces, outputs = self._matrix.pieces, _outputs_of(self._matrix)
        places = [None if p.order is None else np.argsort(p.order.inputs) for p in pieces]
        return list(zip(outputs, places, strict=True))

    def __call__(self, first: int, stop: int) -> NDArray[np.float32]:
        """Return the rows of some outputs, each in the order of its inputs."""
        found = np.empty((stop - first, self._matrix.inputs), np.float32)
        for piece, (outputs, places) in enumerate(self._orders):
            wanted = np.flatnonzero((outputs >= first) & (outputs < stop))
            # Neighbours of a panel are unpacked together.
            for run in np.split(wanted, np.flatnonzero(np.diff(wanted) != 1) + 1):
                if not len(run):
                    continue
                rows = self._read(piece, int(run[0]), len(run))
                found[outputs[run] - first] = rows if places is None else rows[:, places]
        return found


def _outputs_of(matrix: Matrix) -> list[Ints]:
    """Return which output each row of each packed piece has; -1: it is a row of zeros."""
    if matrix.gated:
        return [interleaved(matrix.outputs // 2).astype(np.int32)]
    return [
        np.arange(piece.first, piece.first + piece.native.outputs, dtype=np.int32)
        for piece in matrix.pieces
    ]
