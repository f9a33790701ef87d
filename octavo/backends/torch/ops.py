"""The operations of a listing in plain torch, on tensors [rows, columns]: their meaning.

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
import sys
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from octavo.backends.torch import eight_bits
from octavo.backends.torch.device import HOST, TensorDevice
from octavo.layers import Rope, Routing
from octavo.program.listing import Norm

# Rows of a matrix product. One row costs nearly as much as eight; with more rows in a tile,
# single-stream decoding would become slower and prompts no faster.
TILE_ROWS = 8
# A GPU multiplies so many rows in the time in which it reads the weights.
CUDA_TILE_ROWS = 64
# Libraries sum rows differently if they begin at unaligned addresses. Rows of other lengths are
# padded with zeros.
ROW_ALIGNMENT_BYTES = 64
# Fewer outputs than this do not fill the widest vector (16 floats), so that libraries spread rows
# or inputs over a vector instead. They are cheap to sum here, and a test of so few proves little.
LEAST_TILED_OUTPUTS = 16
# Outputs of a product on the CPU; more are computed in several products. A test of a shape needs as
# much memory as its weight, so that this bounds both its memory and its time. On a card the same
# outputs are tested again and again to the width of the weight.
MOST_TILED_OUTPUTS = 2048
CODED_GROUP = 32  # numbers of a row in int8 that share a scale
_ORDERED_TERMS = 1 << 17  # of a row, multiplied at once: 4 MB for a tile


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows, columns = x.shape
    tile, odd = tile_rows(x.device), -columns % (ROW_ALIGNMENT_BYTES // x.element_size())
    missing = -rows % tile
    padded = functional.pad(x, (0, odd, 0, missing)) if odd or missing else x.contiguous()
    parts, most = [], _most_outputs(x.device)
    for start in range(0, len(weight), most):
        part = weight[start : start + most]
        if _place_matters(len(part), columns + odd, x.dtype, x.device):
            parts.append(_ordered_product(x, part))
        else:
            part = functional.pad(part, (0, odd)) if odd else part
            parts.append(_tiled_product(padded, part)[:rows])
    y = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    return y if bias is None else y + bias


def prove_shapes(weight: Tensor) -> None:
    """Test the shapes of a matrix's products now: it takes a wait, which no step may have."""
    outputs, columns = weight.shape
    columns += -columns % (ROW_ALIGNMENT_BYTES // weight.element_size())
    most = _most_outputs(weight.device)
    for start in range(0, outputs, most):
        part = min(most, outputs - start)
        _place_matters(part, columns, weight.dtype, weight.device)


def tile_rows(device: torch.device) -> int:
    """Return the rows of a product's tile."""
    return CUDA_TILE_ROWS if device.type == "cuda" else TILE_ROWS


def _most_outputs(device: torch.device) -> int:
    """Return the most outputs of one product: on a card all, which has launches to save."""
    return sys.maxsize if device.type == "cuda" else MOST_TILED_OUTPUTS


def norm(x: Tensor, kind: Norm) -> Tensor:
    """Normalise rows, or each head's part of them."""
    if kind.heads == 1 and not kind.weight_a_head:
        return _norm(x, kind)
    return _norm(x.reshape(len(x), kind.heads, -1), kind).reshape(x.shape)


def _norm(x: Tensor, kind: Norm) -> Tensor:
    weight: Tensor = kind.weight
    bias: Tensor | None = kind.bias
    wide = x.float()
    if not kind.is_rms:
        wide = wide - wide.mean(-1, keepdim=True)
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + kind.eps)
    if not kind.is_rms:
        wide = wide * weight.float()
        return (wide if bias is None else wide + bias.float()).to(x.dtype)
    if kind.offset:
        return (wide * (kind.offset + weight.float())).to(x.dtype)
    return wide.to(x.dtype) * weight


def rope_tables(
    positions: Tensor, rope: Rope, dtype: torch.dtype, home: TensorDevice = HOST
) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines [rows, 1, pairs] of these positions."""
    frequencies = home.constant(
        ("rope", rope.frequencies), lambda: np.array(rope.frequencies, np.float32)
    )
    angles = positions.float()[:, None] * frequencies
    cos, sin = angles.cos() * rope.magnitude, angles.sin() * rope.magnitude
    return cos[:, None].to(dtype), sin[:, None].to(dtype)


def rotate(x: Tensor, tables: tuple[Tensor, Tensor], rope: Rope, head_dim: int) -> Tensor:
    """Rotate the pairs of dimensions of each head by the angles of `rope_tables`."""
    cos, sin = tables
    heads = x.reshape(x.shape[0], -1, head_dim)
    turning, still = heads[..., : rope.num_dimensions], heads[..., rope.num_dimensions :]
    if rope.interleaved:
        one, other = turning[..., 0::2], turning[..., 1::2]
    else:
        one, other = turning.chunk(2, dim=-1)
    turned = (one * cos - other * sin, other * cos + one * sin)
    joined = torch.stack(turned, -1).flatten(-2) if rope.interleaved else torch.cat(turned, -1)
    return torch.cat((joined, still), -1).reshape(x.shape)


def sigmoid(x: Tensor) -> Tensor:
    return (1 / (1 + torch.exp(-x.float()))).to(x.dtype)


def _silu(x: Tensor) -> Tensor:
    return x * sigmoid(x)


def _gelu_erf(x: Tensor) -> Tensor:
    wide = x.float()
    return (wide * 0.5 * (1 + torch.erf(wide * math.sqrt(0.5)))).to(x.dtype)


def _gelu_tanh(x: Tensor) -> Tensor:
    wide = x.float()
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide * wide * wide)
    return (wide * 0.5 * (1 + torch.tanh(inner))).to(x.dtype)


def _relu2(x: Tensor) -> Tensor:
    return functional.relu(x).square()


# By their names in a listing.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Silu": _silu,
    "GeluErf": _gelu_erf,
    "GeluTanh": _gelu_tanh,
    "Relu": functional.relu,
    "Relu2": _relu2,
    "Sigmoid": sigmoid,
}


def gate(gates: Tensor, ups: Tensor, activation: str) -> Tensor:
    """Return activation(gates) · ups."""
    if activation == "ClampedSwiglu":  # gpt-oss
        gates, ups = gates.clamp(max=7.0), ups.clamp(-7.0, 7.0)
        return (ups + 1) * gates * sigmoid(gates * 1.702)
    return ACTIVATIONS[activation](gates) * ups


def _rounded_to_bf16(x: Tensor) -> Tensor:
    return x.bfloat16().to(x.dtype)


def _coded(x: Tensor) -> Tensor:
    """Round each group of numbers to 255 multiples of its own scale."""
    columns = x.shape[1]
    groups = functional.pad(x.float(), (0, -columns % CODED_GROUP))
    groups = groups.reshape(len(x), -1, CODED_GROUP)
    scales = (groups.abs().amax(-1, keepdim=True) / 127).clamp(min=torch.finfo().tiny)
    rounded = (groups / scales).round() * scales
    return rounded.reshape(len(x), -1)[:, :columns].to(x.dtype)


# The rows that a product reads, by the kind of its matrix. Codes are computed as their values.
# Behind the name of a kind may stand numbers: for fp8, the scale that a file has for all rows.
FORMS: dict[str, Callable[..., Tensor]] = {
    "float": lambda x: x,
    "bf16": _rounded_to_bf16,
    "int8": _coded,
    "fp8": eight_bits.as_rounded,
}


def formed(x: Tensor, kind: str) -> Tensor:
    """Return rows in the form that matrices of a kind read."""
    name, *numbers = kind.split()
    return FORMS[name](x, *map(float.fromhex, numbers))


def soft_cap(x: Tensor, cap: float) -> Tensor:
    return torch.tanh(x / cap) * cap


def route(scores: Tensor, routing: Routing, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return weights and numbers of the chosen experts: [rows, top_k] each."""
    wide = scores.float()
    if routing.scores == "softmax":
        wide = torch.softmax(wide, -1)
    elif routing.scores == "sigmoid":
        wide = sigmoid(wide)
    biased = wide if bias is None else wide + bias.float()
    if routing.groups > 1:
        biased = _of_best_groups(biased, routing)
    chosen = torch.topk(biased, routing.top_k, dim=-1).indices
    weights = wide.gather(-1, chosen)
    if routing.scores == "chosen":
        weights = torch.softmax(weights, -1)
    if routing.normalise:
        total = weights.sum(-1, keepdim=True)
        # Sigmoids may all be zero.
        weights = weights / (total + 1e-20 if routing.scores == "sigmoid" else total)
    return (weights * routing.scale).to(scores.dtype), chosen


def _of_best_groups(scores: Tensor, routing: Routing) -> Tensor:
    """Return the scores of the experts in the best groups, and no chance for the others."""
    by_group = scores.view(len(scores), routing.groups, -1)
    quality = by_group.topk(routing.group_best, dim=-1).values.sum(-1)
    best = quality.topk(routing.top_groups, dim=-1).indices
    others = torch.ones_like(quality, dtype=torch.bool).scatter_(-1, best, False)
    return by_group.masked_fill(others[..., None], -torch.inf).view_as(scores)


def _tiled_product(x: Tensor, weight: Tensor) -> Tensor:
    """Return `x @ weight.T`, computed by a library in tiles of one shape."""
    y = x.new_empty(len(x), len(weight))
    transposed, height = weight.t(), tile_rows(x.device)
    for start in range(0, len(x), height):
        tile = slice(start, start + height)
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
def _place_matters(
    outputs: int, columns: int, dtype: torch.dtype, device: torch.device = HOST.device
) -> bool:
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
    unlike = min(outputs, MOST_TILED_OUTPUTS)
    half = torch.randn(1 + unlike, columns // 2, generator=generator)
    half[0] *= torch.exp2(torch.randint(-10, 11, half[0].shape, generator=generator))
    other_half = half[:, torch.randperm(columns // 2, generator=generator)]
    other_half[0] *= -1
    both = torch.cat((half, other_half), 1).to(dtype)
    both = both.to(device)
    x = both[:1].repeat(tile_rows(device), 1)
    weight = both[1:].repeat(-(-outputs // unlike), 1)[:outputs]
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
