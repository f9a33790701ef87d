"""Adapters as the reference keeps them: the pairs of matrices of each product that they change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo.backends.adapter_weights import AdapterWeights
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
class TorchAdapter:
    """An adapter's pairs, by the number of the product."""

    products: tuple[tuple[TorchPair, ...], ...]

    @property
    def num_bytes(self) -> int:
        pairs = [pair for of_product in self.products for pair in of_product]
        return sum(pair.down.nbytes + pair.up.nbytes for pair in pairs)


def torch_adapter(
    weights: AdapterWeights, products: Sequence[Adapters], dtype: torch.dtype
) -> TorchAdapter:
    """Copy an adapter's matrices in the type that the backend computes in."""

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(values, np.float32)).to(dtype)

    def pairs_of(product: Adapters) -> tuple[TorchPair, ...]:
        made, first, first_low = [], 0, 0
        pairs = weights.pairs.get(product.path, (None,) * len(product.parts))
        for pair, outputs in zip(pairs, product.parts, strict=True):
            if pair is not None:
                down, up = tensor(pair.down), tensor(pair.up)
                made.append(TorchPair(down, up, pair.scale, first, first_low))
                first_low += len(down)
            first += outputs
        return tuple(made)

    return TorchAdapter(tuple(map(pairs_of, products)))
