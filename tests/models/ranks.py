"""Several ranks in one process: each value holds one value for each rank.

Every rank runs the reference operations on its own shards. The communication between ranks (sums
after projections that are split by inputs, the vocabulary) is done by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from octavo.backends.base import KVLayout
from octavo.backends.step import HostBatch
from octavo.backends.torch.attention import TorchBatch, make_buffers
from octavo.backends.torch.ops import TorchOps
from octavo.distributed.context import ParallelContext
from octavo.layers import CausalLM, Embedding, Linear, Module, PagedAttention
from octavo.layers.moe import ExpertMatrices
from octavo.models.build import assemble, find_needs
from tests.models.made_up import MadeUpWeights


class Team:
    """One value for each rank."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __add__(self, other: Any) -> Team:
        return each(len(self.values), lambda one, another: one + another, self, other)

    def __mul__(self, other: Any) -> Team:
        return each(len(self.values), lambda one, another: one * another, self, other)

    def summed(self) -> Team:
        """Return the result of an all-reduce."""
        total = sum(self.values[1:], self.values[0])
        return Team([total] * len(self.values))


def each(ranks: int, operation: Callable[..., Any], *values: Any) -> Any:
    """Apply an operation to every rank's own values."""
    results = [
        operation(*(value.values[rank] if isinstance(value, Team) else value for value in values))
        for rank in range(ranks)
    ]
    if isinstance(results[0], tuple):
        return tuple(Team(list(parts)) for parts in zip(*results, strict=True))
    return Team(results)


@dataclass
class TeamBatch:
    """The inputs of a batch, equal on all ranks, and the batches of the ranks."""

    token_ids: Tensor
    positions: Tensor
    logits_rows: Tensor
    hidden_rows: Tensor
    own: Team


class TeamOps:
    """The reference operations, run by each rank; `module` is the calling layer."""

    def __init__(self, module: Module, ranks: int) -> None:
        self._module, self._ranks, self._ops = module, ranks, TorchOps()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *values: each(self._ranks, getattr(self._ops, name), *values)

    def embed(self, token_ids: Tensor, table: Team) -> Team:
        if not isinstance(self._module, Embedding):
            return each(self._ranks, self._ops.embed, token_ids, table)
        share = self._module.vocabulary // self._ranks
        parts = []
        for rank, rows in enumerate(table.values):
            local = token_ids - rank * share
            mine = (local >= 0) & (local < share)
            parts.append(self._ops.embed(local.clamp(0, share - 1), rows) * mine[:, None])
        return Team(parts).summed()

    def linear(self, x: Team, weight: Team, bias: Team | None) -> Team:
        y: Team = each(self._ranks, self._ops.linear, x, weight, bias)
        assert isinstance(self._module, Linear)
        return y.summed() if self._module.shard == "in" else y

    def split(self, x: Team, sizes: tuple[int, ...]) -> Any:
        layer = self._module
        assert isinstance(layer, PagedAttention)
        kv = max(1, layer.kv_heads // self._ranks) * layer.head_dim
        local = (layer.heads // self._ranks * layer.head_dim, kv, kv)
        return each(self._ranks, lambda rows: self._ops.split(rows, local), x)

    def head_norm(self, x: Team, norm: Any, heads: int) -> Team:
        def normed(rows: Tensor, weight: Tensor) -> Tensor:
            own = copy(norm)
            own.ops, own.weight = self._ops, weight
            return self._ops.head_norm(rows, own, rows.shape[-1] // weight.shape[-1])

        result: Team = each(self._ranks, normed, x, norm.weight)
        return result

    def attention(self, q: Team, k: Team, v: Team, layer: PagedAttention, batch: TeamBatch) -> Team:
        def attended(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, own: TorchBatch) -> Tensor:
            local = copy(layer)
            local.heads = q.shape[-1] // layer.head_dim
            local.kv_heads, local.sinks = k.shape[-1] // layer.head_dim, sinks
            return self._ops.attention(q, k, v, local, own)

        sinks = layer.sinks if layer.has_sinks else None
        result: Team = each(self._ranks, attended, q, k, v, sinks, batch.own)
        return result

    def experts(self, x: Team, weights: Team, chosen: Team, layer: ExpertMatrices) -> Team:
        def computed(rank: int, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
            local = copy(layer)
            for name in layer.tensors():
                setattr(local, name, getattr(layer, name).values[rank])
            return self._ops.experts(x, weights, chosen, local)

        numbers = Team(list(range(self._ranks)))
        result: Team = each(self._ranks, computed, numbers, x, weights, chosen)
        return result.summed()


def bind_ranks(model: CausalLM, weights: MadeUpWeights, ranks: int) -> None:
    """Give every layer the shards of all ranks."""
    for _, module in model.walk():
        module.ops = TeamOps(module, ranks)
    for need in find_needs(model, weights.shapes()):
        shards = [assemble(need, weights.read, ParallelContext(n, ranks)) for n in range(ranks)]
        setattr(need.module, need.tensor, Team([torch.from_numpy(shard) for shard in shards]))
    if model.tied:
        model.head.weight = model.embed.weight


@torch.inference_mode()
def run_ranks(model: CausalLM, layout: KVLayout, batch: HostBatch, ranks: int) -> Tensor:
    """Run a batch on all ranks, and join their parts of the vocabulary."""
    shape = (max(1, layout.kv_heads // ranks), layout.head_dim)
    own = [
        TorchBatch.of(batch, make_buffers(layout.num_buffers, 64, 4, shape, torch.float32))
        for _ in range(ranks)
    ]
    first = own[0]
    team = TeamBatch(
        first.token_ids, first.positions, first.logits_rows, first.hidden_rows, Team(list(own))
    )
    logits, _ = model(team)
    return torch.cat(logits.values, -1)
