"""The collectives of layers that ranks share, around the operations of those layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from octavo.distributed.communicator import Communicator, Floats
from octavo.layers import CausalLM, Embedding, Linear, Module, Ops, SparseMLP
from octavo.layers.moe import ExpertMatrices


def connect(model: CausalLM, communicator: Communicator) -> None:
    """Let the layers of a bound model complete their results with those of the other ranks."""
    for _, module in model.walk():
        layer = module.experts if isinstance(module, SparseMLP) else module
        if layer.collective is not None:
            module.ops = cast(Ops, _SharedOps(module.ops, layer, communicator))


class _SharedOps:
    """The operations of one layer, completed by its collective."""

    def __init__(self, ops: Ops, layer: Module, communicator: Communicator) -> None:
        self._ops, self._layer, self._communicator = ops, layer, communicator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def embed(self, token_ids: Tensor, table: Tensor) -> Tensor:
        layer = self._layer
        assert isinstance(layer, Embedding)
        rows = token_ids - layer.first
        is_mine = (rows >= 0) & (rows < layer.vocabulary)
        found = self._ops.embed(rows.clamp(0, layer.vocabulary - 1), table)
        return self._complete(found * is_mine[:, None])

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        layer = self._layer
        assert isinstance(layer, Linear)
        if layer.columns is not None:
            x = _through(self._communicator.all_gather, x)[:, torch.from_numpy(layer.columns)]
        return self._complete(self._ops.linear(x, weight, bias))

    def experts(self, x: Tensor, weights: Tensor, chosen: Tensor, layer: ExpertMatrices) -> Tensor:
        return self._complete(self._ops.experts(x, weights, chosen, layer))

    def _complete(self, values: Tensor) -> Tensor:
        join = self._communicator
        is_sum = self._layer.collective == "sum"
        return _through(join.all_reduce if is_sum else join.all_gather, values)


def _through(exchange: Callable[[Floats], Floats], values: Tensor) -> Tensor:
    """Exchange values as float32, so that sums of shorter types are rounded once."""
    return torch.from_numpy(exchange(values.float().numpy())).to(values.dtype)
