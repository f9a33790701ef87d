"""Mixtures of experts: the rows that each expert was chosen for, and their gated MLPs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from octavo.backends.torch import ops
from octavo.backends.torch.weights import TorchExperts
from octavo.program.listing import Mixture


class Chosen(NamedTuple):
    """One expert, the rows that chose it, and its place among those that each row chose."""

    expert: int
    rows: Tensor
    places: Tensor


class Layer(NamedTuple):
    """One of the two products of all experts."""

    matrices: TorchExperts
    bias: Tensor | None

    def product(self, x: Tensor, expert: int) -> Tensor:
        bias = None if self.bias is None else self.bias[expert]
        return self.matrices.matrix(expert).product(x, bias)


def sort_pairs(chosen: Tensor) -> Iterable[Chosen]:
    """Yield every expert that any row chose, in the order of their numbers."""
    for expert in sorted({*chosen.flatten().tolist()}):
        rows, places = (chosen == expert).nonzero(as_tuple=True)
        yield Chosen(expert, rows, places)


def mix(x: Tensor, weights: Tensor, chosen: Tensor, mixture: Mixture) -> Tensor:
    """Add up the outputs of each row's chosen experts, in the order of their numbers."""
    assert isinstance(mixture.gate_up, TorchExperts)
    assert isinstance(mixture.down, TorchExperts)
    gate_up = Layer(mixture.gate_up, mixture.gate_up_bias)
    down = Layer(mixture.down, mixture.down_bias)
    y = torch.zeros_like(x)
    for one in sort_pairs(chosen):
        inner = gated_product(gate_up, x[one.rows], one.expert, mixture.activation)
        _add(y, down.product(inner, one.expert), weights, one)
    return y


def gated_products(layer: Layer, x: Tensor, pairs: Sequence[Chosen], activation: str) -> Tensor:
    """Return the gated rows of all pairs, expert after expert."""
    return torch.cat([gated_product(layer, x[p.rows], p.expert, activation) for p in pairs])


def gated_product(layer: Layer, x: Tensor, expert: int, activation: str) -> Tensor:
    """Return activation(gate) · up for rows of one expert."""
    gates, ups = layer.product(x, expert).chunk(2, dim=-1)
    return ops.gate(gates, ups, activation)


def weighted_sums(layer: Layer, x: Tensor, pairs: Sequence[Chosen], weights: Tensor) -> Tensor:
    """Add up the products of each row's pairs, where x has the rows of `gated_products`."""
    return sums(weighted_products(layer, x, pairs, weights), pairs, len(weights))


def weighted_products(layer: Layer, x: Tensor, pairs: Sequence[Chosen], weights: Tensor) -> Tensor:
    """Return the product of each pair, times its weight, in the order of `gated_products`."""
    made, start = [x.new_zeros(0, layer.matrices.values.shape[1])], 0
    for one in pairs:
        stop = start + len(one.rows)
        product = layer.product(x[start:stop], one.expert)
        made.append(product * weights[one.rows, one.places, None])
        start = stop
    return torch.cat(made)


def sums(products: Tensor, pairs: Sequence[Chosen], rows: int) -> Tensor:
    """Add up the products of each row's pairs, in the order of their experts' numbers."""
    y, start = products.new_zeros(rows, products.shape[1]), 0
    for one in pairs:
        stop = start + len(one.rows)
        y[one.rows] += products[start:stop]
        start = stop
    return y


def _add(y: Tensor, out: Tensor, weights: Tensor, one: Chosen) -> None:
    y[one.rows] += out * weights[one.rows, one.places, None]
