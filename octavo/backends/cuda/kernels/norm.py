"""Normalises rows, or each head's part of them: a program for each."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from octavo.backends.cuda.accelerator import Accelerator
from octavo.program.listing import Norm

# A program of 4 warps keeps 32 numbers of 4,096 in each thread's registers; wider rows get 8 warps.
_WIDE = 4096


@triton.jit
def normalise(
    x,
    weight,
    bias,
    out,
    stride,  # numbers from a row of x to the next
    width,
    eps,
    offset,
    block: tl.constexpr,  # the power of two at or above width
    is_rms: tl.constexpr,
    has_bias: tl.constexpr,
    has_offset: tl.constexpr,
    weight_a_head: tl.constexpr,
):
    """Write the normalised values of one head of one row."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, block)
    inside = at < width
    values = tl.load(x + row * stride + head * width + at, mask=inside, other=0.0).to(tl.float32)
    if not is_rms:
        values = tl.where(inside, values - tl.sum(values, 0) / width, 0.0)
    values = values * tl.rsqrt(tl.sum(values * values, 0) / width + eps)
    first = head * width if weight_a_head else 0
    factors = tl.load(weight + first + at, mask=inside, other=0.0).to(tl.float32)
    if has_offset:
        values = values * (offset + factors)
    elif is_rms:  # rounded before the product, as models are trained
        values = values.to(out.dtype.element_ty).to(tl.float32) * factors
    else:
        values = values * factors
    if has_bias:
        values += tl.load(bias + first + at, mask=inside, other=0.0).to(tl.float32)
    place = out + (row * tl.num_programs(1) + head) * width + at
    tl.store(place, values.to(out.dtype.element_ty), mask=inside)


def norm(x: Tensor, kind: Norm, home: Accelerator) -> Tensor:
    """Return normalised rows; x may be some columns of wider rows."""
    width = x.shape[1] // kind.heads
    out = x.new_empty(x.shape)
    block = triton.next_power_of_2(width)
    bias: Tensor | None = None if kind.is_rms else kind.bias
    home.launch(
        normalise,
        (len(x), kind.heads),
        (x, kind.weight, kind.weight if bias is None else bias, out),
        (x.stride(0), width, kind.eps, kind.offset),
        block=block,
        is_rms=kind.is_rms,
        has_bias=bias is not None,
        has_offset=kind.is_rms and bool(kind.offset),
        weight_a_head=kind.weight_a_head,
        num_warps=4 if block <= _WIDE else 8,
    )
    return out
