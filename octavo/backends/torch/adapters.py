"""Adapters as the reference keeps them: what each does to the products that it changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from octavo.backends.adapter_weights import AdapterWeights, Whole
from octavo.backends.adapters import Floats, part_changes
from octavo.backends.torch import ops
from octavo.backends.torch.device import HOST, TensorDevice
from octavo.backends.torch.weights import TorchMatrix
from octavo.layers import Model
from octavo.program.operands import Adapters


@dataclass(frozen=True, eq=False, slots=True)
class TorchPair:
    """An adapter's addend to some outputs of a product: scale · up (down x)."""

    down: Tensor  # [rank, inputs]
    up: Tensor  # [outputs of the part, rank]
    scale: float
    first: int  # output
    first_low: int  # number among those that the product's first matrices make


@dataclass(frozen=True, eq=False, slots=True)
class TorchChange:
    """The changes of an adapter to one product."""

    pairs: tuple[TorchPair, ...] = ()
    # [outputs], by which sums with the addends in them are multiplied: float32, since in a narrow
    # type most would be 1.
    growth: Tensor | None = None
    bias: Tensor | None = None  # [outputs]: is added behind that
    whole: Tensor | None = None  # in place of the layer's matrix or table
    whole_bias: Tensor | None = None

    @property
    def num_bytes(self) -> int:
        others = (self.growth, self.bias, self.whole, self.whole_bias)
        tensors = [each for pair in self.pairs for each in (pair.down, pair.up)]
        return sum(each.nbytes for each in (*others, *tensors) if each is not None)


@dataclass(frozen=True, eq=False, slots=True)
class TorchAdapter:
    """An adapter's changes, by the number of the product."""

    products: tuple[TorchChange, ...]

    @property
    def num_bytes(self) -> int:
        return sum(change.num_bytes for change in self.products)


Changed = Iterable[tuple[TorchChange, float, Tensor]]  # with the slot's factor, and the rows


def shrink(x: Tensor, low: Tensor, changes: Changed) -> None:
    """Multiply rows by their adapters' first matrices."""
    for change, factor, rows in changes:
        for pair in change.pairs:
            scaled = ops.linear(x[rows], pair.down, None) * (pair.scale * factor)
            low[rows, pair.first_low : pair.first_low + len(pair.down)] = scaled


def expand(y: Tensor, bias: Tensor | None, low: Tensor, changes: Changed) -> None:
    """Change the rows of a product, to which its bias is added already, as their adapters do."""
    for change, factor, rows in changes:
        changed = y[rows]
        if change.growth is not None:
            whole = changed.float()
            sums = whole if bias is None else whole - bias
            changed = (whole + sums * ((change.growth - 1) * factor)).to(y.dtype)
        for pair in change.pairs:
            of_pair = low[rows, pair.first_low : pair.first_low + len(pair.down)]
            addend = ops.linear(of_pair, pair.up, None)
            outputs = slice(pair.first, pair.first + len(pair.up))
            changed[:, outputs] += (
                addend if change.growth is None else addend * change.growth[outputs]
            )
        if change.bias is not None:
            changed = changed + change.bias * factor
        y[rows] = changed


def replace_products(y: Tensor, x: Tensor, changes: Changed) -> None:
    """Multiply rows with their adapters' own matrices, where they have any, instead."""
    for change, factor, rows in changes:
        if change.whole is not None and factor:
            y[rows] = ops.linear(x[rows], change.whole, change.whole_bias)


def change_looked_up(found: Tensor, ids: Tensor, changes: Changed) -> None:
    """Change rows that were looked up by token as their adapters do."""
    for change, factor, rows in changes:
        if change.whole is not None and factor:
            found[rows] = change.whole[ids[rows]]
        for pair in change.pairs:
            low = pair.down.T[ids[rows]] * (pair.scale * factor)
            found[rows] += ops.linear(low, pair.up, None)


class TorchAdapters:
    """Makes adapters of one model, in the type that the backend computes in."""

    def __init__(
        self,
        model: Model,
        products: Sequence[Adapters],
        dtype: torch.dtype,
        home: TensorDevice = HOST,
    ) -> None:
        self._layers: dict[str, Any] = dict(model.walk())
        self._products = products
        self._dtype = dtype
        self._home = home

    def make(self, weights: AdapterWeights) -> TorchAdapter:
        """Copy an adapter's numbers."""
        return TorchAdapter(tuple(self._change(weights, product) for product in self._products))

    def _change(self, weights: AdapterWeights, product: Adapters) -> TorchChange:
        if product.path not in weights.paths:
            return TorchChange()
        layer, pairs, first, first_low = self._layers[product.path], [], 0, 0
        if product.path in weights.wholes:
            return self._of_whole(weights.wholes[product.path], layer)
        of_parts = weights.pairs.get(product.path, (None,) * len(product.parts))
        for pair, outputs in zip(of_parts, product.parts, strict=True):
            if pair is not None:
                down, up = self._tensor(pair.down), self._tensor(pair.up)
                pairs.append(TorchPair(down, up, pair.scale, first, first_low))
                first_low += len(down)
            first += outputs
        has_bias = not product.is_lookup and layer.has_bias
        bias = self._home.fetch([layer.bias.float()])[0] if has_bias else None
        changes = part_changes(weights, product, partial(self._rows_of, layer.weight), bias)
        growth = _joined(product, [change.growth for change in changes], 1.0)
        addend = _joined(product, [change.addend for change in changes], 0.0)
        return TorchChange(
            tuple(pairs),
            None if growth is None else self._home.upload([growth])[0],
            None if addend is None else self._tensor(addend),
        )

    def _of_whole(self, whole: Whole, layer: Any) -> TorchChange:
        bias = getattr(layer, "bias", None) if whole.bias is None else self._tensor(whole.bias)
        return TorchChange(whole=self._tensor(whole.rows.floats()), whole_bias=bias)

    def _tensor(self, values: np.ndarray) -> Tensor:
        (made,) = self._home.upload([np.array(values, np.float32)])
        made = made.to(self._dtype)
        if made.dim() == 2 and self._home is not HOST:  # where no step may wait for that test
            ops.prove_shapes(made)
        return made

    def _rows_of(self, matrix: TorchMatrix, first: int, stop: int) -> np.ndarray:
        (found,) = self._home.fetch([matrix.floats(first, stop)])
        return found


def _joined(product: Adapters, given: Sequence[Floats | None], otherwise: float) -> Floats | None:
    """Return a number for each output; None if no part has any."""
    if all(values is None for values in given):
        return None
    parts = [
        np.full(outputs, otherwise, np.float32) if values is None else values
        for values, outputs in zip(given, product.parts, strict=True)
    ]
    return np.concatenate(parts)
