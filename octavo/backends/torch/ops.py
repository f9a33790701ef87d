"""What every operation means, in plain torch.

Exactness: a row's result must not depend on which rows are beside it. In matrix products it
might, since libraries choose their order of summation by the shape. So they are done in tiles of a
fixed number of rows, the last one padded: the shape is always the same, and within a shape a
row's place does not matter. It might also in functions that torch computes in one way for whole
vectors and in another for what is left over at the end of a tensor or of a thread's share: its
sigmoid, silu and gelu do, its exp, tanh, erf, sin and cos do not. So the former are made of the
latter here. tests/backends/torch/test_exactness.py holds all of this.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from octavo.backends.torch.attention import TorchBatch, attend
from octavo.layers import PagedAttention, Rope, Routing
from octavo.layers.moe import ExpertMatrices

# Rows of a matrix product. One row costs as much as eight, nearly; more rows a tile would make
# single-stream decoding slower without making prompts faster.
TILE_ROWS = 8
# Where rows begin at uneven addresses, libraries sum them up in uneven ways: a row's place in its
# tile would matter. No model of use has such rows; where they come, both sides are filled up.
ALIGNED_COLUMNS = 16


class TorchOps:
    """Operations on tensors of shape [rows, features]."""

    def __init__(self) -> None:
        # The tables of each rope for the positions that were asked for last: all layers of a
        # step ask for the same ones.
        self._turns: dict[tuple[Rope, torch.dtype], tuple[Tensor, Tensor, Tensor]] = {}

    def embed(self, token_ids: Tensor, table: Tensor) -> Tensor:
        return functional.embedding(token_ids, table)

    def select_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        return x.index_select(0, rows)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows, columns = x.shape
        padding, odd = -rows % TILE_ROWS, -columns % ALIGNED_COLUMNS
        x = functional.pad(x, (0, odd, 0, padding)) if padding or odd else x.contiguous()
        if odd:
            weight = functional.pad(weight, (0, odd))
        y = x.new_empty(x.shape[0], weight.shape[0])
        transposed = weight.t()
        for start in range(0, x.shape[0], TILE_ROWS):
            tile = slice(start, start + TILE_ROWS)
            torch.mm(x[tile], transposed, out=y[tile])
        y = y[:rows]
        return y if bias is None else y + bias

    def split(self, x: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
        return x.split_with_sizes(sizes, dim=-1)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        if offset:
            return (wide * (offset + weight.float())).to(x.dtype)
        return wide.to(x.dtype) * weight

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        wide = x.float()
        wide = wide - wide.mean(-1, keepdim=True)
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        y = wide * weight.float()
        return (y if bias is None else y + bias.float()).to(x.dtype)

    def head_norm(self, x: Tensor, norm: Any, heads: int) -> Tensor:
        normed: Tensor = norm(x.reshape(x.shape[0], heads, -1))
        return normed.reshape(x.shape)

    def rope(self, x: Tensor, positions: Tensor, rope: Rope, head_dim: int) -> Tensor:
        cos, sin = self._cos_and_sin(positions, rope, x.dtype)
        heads = x.reshape(x.shape[0], -1, head_dim)
        turning, still = heads[..., : rope.num_dimensions], heads[..., rope.num_dimensions :]
        if rope.interleaved:
            one, other = turning[..., 0::2], turning[..., 1::2]
        else:
            one, other = turning.chunk(2, dim=-1)
        turned = (one * cos - other * sin, other * cos + one * sin)
        joined = torch.stack(turned, -1).flatten(-2) if rope.interleaved else torch.cat(turned, -1)
        return torch.cat((joined, still), -1).reshape(x.shape)

    def _cos_and_sin(
        self, positions: Tensor, rope: Rope, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        known = self._turns.get((rope, dtype))
        if known is None or known[0] is not positions:
            frequencies = torch.tensor(rope.frequencies, dtype=torch.float32)
            angles = positions.float()[:, None] * frequencies.to(positions.device)
            cos = (angles.cos() * rope.magnitude)[:, None].to(dtype)
            sin = (angles.sin() * rope.magnitude)[:, None].to(dtype)
            known = self._turns[rope, dtype] = positions, cos, sin
        return known[1], known[2]

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, layer: PagedAttention, batch: TorchBatch
    ) -> Tensor:
        return attend(q, k, v, layer, batch)

    def activation(self, x: Tensor, name: str) -> Tensor:
        match name:
            case "silu" | "swish":
                return x * self.sigmoid(x)
            case "gelu":
                wide = x.float()
                return (wide * 0.5 * (1 + torch.erf(wide * math.sqrt(0.5)))).to(x.dtype)
            case "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast":
                wide = x.float()
                inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide * wide * wide)
                return (wide * 0.5 * (1 + torch.tanh(inner))).to(x.dtype)
            case "relu":
                return functional.relu(x)
            case "relu2":
                return functional.relu(x).square()
        raise ValueError(f"activation {name!r} is not known")

    def gated_activation(self, gate_up: Tensor, name: str) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        if name == "clamped_swiglu":  # gpt-oss
            gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
            return (up + 1) * gate * self.sigmoid(gate * 1.702)
        return self.activation(gate, name) * up

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        return torch.tanh(x / cap) * cap

    def sigmoid(self, x: Tensor) -> Tensor:
        return (1 / (1 + torch.exp(-x.float()))).to(x.dtype)

    def route(self, scores: Tensor, routing: Routing, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """Weights and numbers of the chosen experts: [rows, top_k] each."""
        wide = scores.float()
        if routing.scores == "softmax":
            wide = torch.softmax(wide, -1)
        elif routing.scores == "sigmoid":
            wide = self.sigmoid(wide)
        judged = wide if bias is None else wide + bias.float()
        chosen = torch.topk(judged, routing.top_k, dim=-1).indices
        weights = wide.gather(-1, chosen)
        if routing.scores == "chosen":
            weights = torch.softmax(weights, -1)
        if routing.normalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return (weights * routing.scale).to(scores.dtype), chosen

    def experts(self, x: Tensor, weights: Tensor, chosen: Tensor, layer: ExpertMatrices) -> Tensor:
        """Each row's chosen experts, added up in the order of their numbers."""
        y = torch.zeros_like(x)
        for expert in sorted({*chosen.flatten().tolist()}):
            rows, places = (chosen == expert).nonzero(as_tuple=True)
            gate_up = self.linear(
                x[rows],
                layer.gate_up_weight[expert],
                layer.gate_up_bias[expert] if layer.has_bias else None,
            )
            inner = self.gated_activation(gate_up, layer.activation)
            out = self.linear(
                inner,
                layer.down_weight[expert],
                layer.down_bias[expert] if layer.has_bias else None,
            )
            y[rows] += out * weights[rows, places, None]
        return y
