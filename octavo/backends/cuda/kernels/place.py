"""Normalises and rotates queries and keys, and writes keys and values to their cells."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from octavo.backends.cuda.accelerator import Accelerator
from octavo.backends.cuda.kernels.eight_bits import codes_of, exponent_of, inverse_of
from octavo.backends.torch.attention import LayerCells
from octavo.program.listing import Attend, Norm

_Tables = tuple[Tensor, Tensor]


@triton.jit
def _turned(
    x,  # one head of one row
    weight,
    cos,
    sin,  # of the row
    at,
    dim,
    turning,  # the numbers of a head that are rotated
    eps,
    offset,
    has_norm: tl.constexpr,
    has_rope: tl.constexpr,
    is_interleaved: tl.constexpr,
):
    """Return a head's numbers, normalised and rotated, in float32."""
    inside = at < dim
    values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    kind = x.dtype.element_ty
    root = 1.0
    if has_norm:
        root = tl.rsqrt(tl.sum(values * values, 0) / dim + eps)
        factors = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
        if offset != 0:
            values = (values * root * (offset + factors)).to(kind).to(tl.float32)
        else:
            values = ((values * root).to(kind).to(tl.float32) * factors).to(kind).to(tl.float32)
    if has_rope:
        turns = at < turning
        if is_interleaved:
            partner, pair, is_first = at ^ 1, at // 2, at % 2 == 0
        else:
            half = turning // 2
            is_first = at < half
            partner = tl.where(is_first, at + half, at - half)
            pair = tl.where(is_first, at, at - half)
        others = tl.load(x + partner, mask=turns, other=0.0).to(tl.float32)
        if has_norm:
            factors = tl.load(weight + partner, mask=turns, other=0.0).to(tl.float32)
            if offset != 0:
                others = (others * root * (offset + factors)).to(kind).to(tl.float32)
            else:
                others = ((others * root).to(kind).to(tl.float32) * factors).to(kind).to(tl.float32)
        c = tl.load(cos + pair, mask=turns, other=1.0).to(tl.float32)
        s = tl.load(sin + pair, mask=turns, other=0.0).to(tl.float32)
        turned = values * c + tl.where(is_first, -others, others) * s
        values = tl.where(turns, turned, values)
    return values


@triton.jit
def _keep_short(vector, codes, exponent, is_kept, has_cell):
    """Write a vector in eight bits, and the exponent of its scale."""
    found = exponent_of(vector)
    tl.store(exponent, found.to(tl.uint8), mask=has_cell)
    tl.store(codes, codes_of(vector * inverse_of(found)), mask=is_kept)


@triton.jit
def place_heads(
    q,
    k,
    v,
    q_weight,
    k_weight,
    cos,
    sin,
    blocks,  # of each row's cell; below 0: it has none
    insides,  # its place in the block
    keys,
    values,
    key_exponents,  # where cells have eight bits
    value_exponents,
    out,  # the queries
    q_stride,
    k_stride,
    v_stride,
    block_stride,
    cell_stride,
    dim,
    turning,
    eps,
    offset,
    heads: tl.constexpr,
    kv_heads: tl.constexpr,
    block_dim: tl.constexpr,
    has_norm: tl.constexpr,
    has_rope: tl.constexpr,
    is_interleaved: tl.constexpr,
    is_short: tl.constexpr,  # cells have eight bits
):
    """Write one head of one row: a query's to `out`, that of a key or a value to its cell."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, block_dim)
    inside = at < dim
    angles = row * (turning // 2)
    block = tl.load(blocks + row)
    cell = block * block_stride + tl.load(insides + row) * cell_stride
    # Cells and exponents lie alike, but that a vector has one exponent.
    exponents = block * block_stride + tl.load(insides + row) * (cell_stride // dim)
    is_kept = inside & (block >= 0)
    if head < heads:
        query = _turned(
            q + row * q_stride + head * dim, q_weight, cos + angles, sin + angles, at, dim, turning,
            eps, offset, has_norm, has_rope, is_interleaved,
        )  # fmt: skip
        tl.store(out + (row * heads + head) * dim + at, query.to(out.dtype.element_ty), mask=inside)
    elif head < heads + kv_heads:
        kv_head = head - heads
        key = _turned(
            k + row * k_stride + kv_head * dim, k_weight, cos + angles, sin + angles, at, dim,
            turning, eps, offset, has_norm, has_rope, is_interleaved,
        )  # fmt: skip
        if is_short:
            key = tl.where(inside, key.to(k.dtype.element_ty).to(tl.float32), 0.0)
            exponent = key_exponents + exponents + kv_head
            _keep_short(key, keys + cell + kv_head * dim + at, exponent, is_kept, block >= 0)
        else:
            tl.store(keys + cell + kv_head * dim + at, key.to(keys.dtype.element_ty), mask=is_kept)
    else:
        own = head - heads - kv_heads
        value = tl.load(v + row * v_stride + own * dim + at, mask=inside, other=0.0)
        if is_short:
            value, exponent = value.to(tl.float32), value_exponents + exponents + own
            _keep_short(value, values + cell + own * dim + at, exponent, is_kept, block >= 0)
        else:
            kept = value.to(values.dtype.element_ty)
            tl.store(values + cell + own * dim + at, kept, mask=is_kept)


def place(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer: Attend,
    turns: _Tables | None,
    cells: LayerCells,
    where: _Tables,
    home: Accelerator,
) -> Tensor:
    """Write keys and values to the cells of their rows; return the queries to attend with."""
    out = q.new_empty(len(q), layer.heads * layer.head_dim)
    norm = layer.q_norm
    cos, sin = (q, q) if turns is None else turns
    q_weight, k_weight = q, q
    if norm is not None:
        assert layer.k_norm is not None
        q_weight, k_weight = norm.weight, layer.k_norm.weight
    rope = layer.rope
    home.launch(
        place_heads,
        (len(q), layer.heads + 2 * layer.kv_heads),
        (q, k, v, q_weight, k_weight, cos, sin, *where, *all_of(cells), out),
        (
            *(q.stride(0), k.stride(0), v.stride(0), cells.keys.stride(0), cells.keys.stride(1)),
            *(layer.head_dim, 0 if rope is None else rope.num_dimensions),
            *((0.0, 0.0) if norm is None else (norm.eps, norm.offset)),
        ),
        heads=layer.heads,
        kv_heads=layer.kv_heads,
        block_dim=triton.next_power_of_2(layer.head_dim),
        has_norm=norm is not None,
        has_rope=rope is not None,
        is_interleaved=rope is not None and rope.interleaved,
        is_short=cells.key_exponents is not None,
        num_warps=1,
    )
    return out


def all_of(cells: LayerCells) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the cells of keys and values, and their exponents, or what stands in their place."""
    keys, values, key_exponents, value_exponents = (
        cells.keys,
        cells.values,
        cells.key_exponents,
        cells.value_exponents,
    )
    if key_exponents is None or value_exponents is None:
        return keys, values, keys, values
    return keys, values, key_exponents, value_exponents


def is_placed(layer: Attend) -> bool:
    """Return whether the kernel computes this layer's norms, if it has any."""
    q, k = layer.q_norm, layer.k_norm
    if q is None or k is None:
        return q is k
    are_of_heads = (q.heads, k.heads) == (layer.heads, layer.kv_heads)
    are_alike = (q.eps, q.offset) == (k.eps, k.offset)
    return are_of_heads and are_alike and _is_simple(q) and _is_simple(k)


def _is_simple(norm: Norm) -> bool:
    return norm.is_rms and not norm.weight_a_head
