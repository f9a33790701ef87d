"""The operations of a model in plain torch: the reference for every other backend.

Exactness: the bits of a row's result must depend on that row alone, on any processor. Three things
could break this, and tests/backends/torch/test_exactness.py checks all of them:

- A library chooses the order of summation of a matrix product by its shape. Products are therefore
  computed in tiles of a fixed number of rows, and the last tile is padded.
- Within a tile, a library may sum a row differently depending on its place. Each shape is therefore
  tested once on the processor at hand. A product that fails, or that has few outputs, is summed
  here, in an order that no library chooses.
- Torch computes some functions differently for whole vectors and for the remainder at the end of a
  tensor or of a thread's share. Its sigmoid, silu and gelu do so; its exp, tanh, erf, sin and cos
  do not, so the former are built from the latter.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from octavo.backends.torch.attention import TorchBatch, attend
from octavo.layers import PagedAttention, Rope, Routing
from octavo.layers.moe import ExpertMatrices

# Rows of a matrix product. One row costs nearly as much as eight; with more rows in a tile,
# single-stream decoding would become slower and prompts no faster.
TILE_ROWS = 8
# Libraries sum rows differently if they begin at unaligned addresses. Rows of other lengths are
# padded with zeros.
ROW_ALIGNMENT_BYTES = 64
# Fewer outputs than this do not fill the widest vector (16 floats), so that libraries spread rows
# or inputs over a vector instead. They are cheap to sum here, and a test of so few proves little.
LEAST_TILED_OUTPUTS = 16
# Outputs of a product; more are computed in several products. A test of a shape needs as much
# memory as its weight, so that this bounds both its memory and its time.
MOST_TILED_OUTPUTS = 2048
_ORDERED_TERMS = 1 << 17  # of a row, multiplied at once: 4 MB for a tile


class TorchOps:
    """Operations on tensors of shape [rows, features]."""

    def __init__(self) -> None:
        # The tables of each rope for the last positions: all layers of a step use the same.
        self._turns: dict[tuple[Rope, torch.dtype], tuple[Tensor, Tensor, Tensor]] = {}

    def embed(self, token_ids: Tensor, table: Tensor) -> Tensor:
        return functional.embedding(token_ids, table)

    def select_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        return x.index_select(0, rows)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows, columns = x.shape
        missing, odd = -rows % TILE_ROWS, -columns % (ROW_ALIGNMENT_BYTES // x.element_size())
        padded = functional.pad(x, (0, odd, 0, missing)) if odd or missing else x.contiguous()
        parts = []
        for start in range(0, len(weight), MOST_TILED_OUTPUTS):
            part = weight[start : start + MOST_TILED_OUTPUTS]
            if _place_matters(len(part), columns + odd, x.dtype):
                parts.append(_ordered_product(x, part))
            else:
                part = functional.pad(part, (0, odd)) if odd else part
                parts.append(_tiled_product(padded, part)[:rows])
        y = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
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
        raise ValueError(f"activation {name!r} is not supported")

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
        """Return weights and numbers of the chosen experts: [rows, top_k] each."""
        wide = scores.float()
        if routing.scores == "softmax":
            wide = torch.softmax(wide, -1)
        elif routing.scores == "sigmoid":
            wide = self.sigmoid(wide)
        biased = wide if bias is None else wide + bias.float()
        chosen = torch.topk(biased, routing.top_k, dim=-1).indices
        weights = wide.gather(-1, chosen)
        if routing.scores == "chosen":
            weights = torch.softmax(weights, -1)
        if routing.normalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return (weights * routing.scale).to(scores.dtype), chosen

    def experts(self, x: Tensor, weights: Tensor, chosen: Tensor, layer: ExpertMatrices) -> Tensor:
        """Add up the outputs of each row's chosen experts, in the order of their numbers."""
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


def _tiled_product(x: Tensor, weight: Tensor) -> Tensor:
    """Return `x @ weight.T`, computed by a library in tiles of one shape."""
    y = x.new_empty(len(x), len(weight))
    transposed = weight.t()
    for start in range(0, len(x), TILE_ROWS):
        tile = slice(start, start + TILE_ROWS)
        torch.mm(x[tile], transposed, out=y[tile])
    return y


def _ordered_product(x: Tensor, weight: Tensor) -> Tensor:
    """Return `x @ weight.T` by elementwise operations, whose bits no library can change."""
    columns = x.shape[1]
    width = 1 << (columns - 1).bit_length()
    outputs = max(1, _ORDERED_TERMS // width)
    y = x.new_empty(len(x), len(weight))
    for part in range(0, len(weight), outputs):
        factors = weight[part : part + outputs].float()
        for start in range(0, len(x), TILE_ROWS):
            tile = slice(start, start + TILE_ROWS)
            terms = functional.pad(x[tile, None].float() * factors, (0, width - columns))
            while (half := terms.shape[-1] // 2) > 0:
                terms = terms[..., :half] + terms[..., half:]
            y[tile, part : part + outputs] = terms.squeeze(-1)
    return y


@cache
def _place_matters(outputs: int, columns: int, dtype: torch.dtype) -> bool:
    """Return whether the bits of a row of a tile may depend on its place, or on the threads.

    The test multiplies a tile of equal rows. Each sum has terms of very different size, in two
    halves that cancel each other out but for rounding, so that another order of summation shows in
    the leading digits of the result.

    Proven: at this very shape, with one, two and the present number of threads, the library sums
    these numbers in one order at every place of a tile. Assumed: its choice of a kernel depends on
    the shape, the type, the alignment and the number of threads, but not on the numbers.
    """
    if outputs < LEAST_TILED_OUTPUTS:
        return True
    generator = torch.Generator().manual_seed(0)
    half = torch.randn(1 + outputs, columns // 2, generator=generator)
    half[0] *= torch.exp2(torch.randint(-10, 11, half[0].shape, generator=generator))
    other_half = half[:, torch.randperm(columns // 2, generator=generator)]
    other_half[0] *= -1
    both = torch.cat((half, other_half), 1).to(dtype)
    x, weight = both[:1].repeat(TILE_ROWS, 1), both[1:].contiguous()
    num_threads = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, num_threads):
            torch.set_num_threads(threads)
            results.append(_tiled_product(x, weight))
    finally:
        torch.set_num_threads(num_threads)
    expected = results[0][:1].expand_as(results[0])
    return not all(torch.equal(result, expected) for result in results)
