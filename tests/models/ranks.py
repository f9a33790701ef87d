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

from octavo.backends.base import HostBatch, KVLayout
from octavo.backends.torch import experts, ops
from octavo.backends.torch.attention import TorchBatch, attend, make_buffers
from octavo.backends.torch.weights import TorchExperts
from octavo.distributed.context import ParallelContext
from octavo.layers import CausalLM, Embedding, Linear, Module, PagedAttention, RMSNorm
from octavo.layers.moe import ExpertMatrices
from octavo.models.build import assemble, find_needs
from octavo.program.listing import Attend, Mixture, Norm
from octavo.program.recorder import ACTIVATIONS, GATES
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


class TensorOps:
    """The meaning of operations, called by layers on the tensors of one rank."""

    def embed(self, ids: Tensor, table: Tensor) -> Tensor:
        return table[ids]

    def select_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        return x[rows]

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return ops.linear(x, weight, bias)

    def split(self, x: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
        return x.split_with_sizes(sizes, dim=-1)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        return ops.norm(x, Norm(weight, None, eps, offset, is_rms=True))

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        return ops.norm(x, Norm(weight, bias, eps, 0.0, is_rms=False))

    def head_norm(self, x: Tensor, norm: Any, heads: int) -> Tensor:
        is_rms = isinstance(norm, RMSNorm)
        offset, a_head = norm.offset if is_rms else 0.0, norm.weight.ndim == 2
        return ops.norm(x, Norm(norm.weight, None, norm.eps, offset, is_rms, heads, a_head))

    def rope(self, x: Tensor, positions: Tensor, rope: Any, head_dim: int) -> Tensor:
        return ops.rotate(x, ops.rope_tables(positions, rope, x.dtype), rope, head_dim)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, layer: Any, batch: TorchBatch) -> Tensor:
        numbers = (layer.scale, layer.softcap or 0.0, layer.window or 0)
        shape = Attend(
            layer.heads, layer.kv_heads, layer.head_dim, *numbers, layer.sinks, layer.place
        )
        return attend(q, k, v, shape, batch)

    def activation(self, x: Tensor, name: str) -> Tensor:
        return ops.ACTIVATIONS[ACTIVATIONS[name]](x)

    def sigmoid(self, x: Tensor) -> Tensor:
        return ops.sigmoid(x)

    def gated_activation(self, gate_up: Tensor, name: str) -> Tensor:
        gates, ups = gate_up.chunk(2, dim=-1)
        return ops.gate(gates, ups, GATES[name])

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        return ops.soft_cap(x, cap)

    def route(self, scores: Tensor, routing: Any, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        return ops.route(scores, routing, bias)

    def experts(self, x: Tensor, weights: Tensor, chosen: Tensor, layer: Any) -> Tensor:
        biases = (layer.gate_up_bias, layer.down_bias) if layer.has_bias else (None, None)
        matrices = TorchExperts(layer.gate_up_weight), TorchExperts(layer.down_weight)
        mixture = Mixture(*matrices, biases[0], biases[1], GATES[layer.activation])
        return experts.mix(x, weights, chosen, mixture)


class TeamOps:
    """The reference operations, run by each rank; `module` is the calling layer."""

    def __init__(self, module: Module, ranks: int) -> None:
        self._module, self._ranks, self._ops = module, ranks, TensorOps()

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
            local.kv_heads, local.sinks = (
                k.shape[-1] // layer.head_dim,
                sinks if layer.has_sinks else None,
            )
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
