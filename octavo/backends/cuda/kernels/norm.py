"""Normalises rows, sums of two rows, or each head's part of rows: a program for each."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from octavo.backends.cuda.accelerator import Accelerator
from octavo.backends.cuda.kernels.rounding import Results, write_results
from octavo.program.listing import Norm

# A program of 4 warps keeps 32 numbers of 4,096 in each thread's registers; wider rows get 8 warps.
_WIDE = 4096


@triton.jit
def normalised(
    values,  # float32, zero where none is inside
    at,
    inside,
    weight,  # where those of these values begin
    bias,
    width,
    eps,
    offset,
    rounded: tl.constexpr,  # the type of the result
    is_rms: tl.constexpr,
    has_bias: tl.constexpr,
    has_offset: tl.constexpr,
):
    """Return the normalised values, in float32."""
    if not is_rms:
        values = tl.where(inside, values - tl.sum(values, 0) / width, 0.0)
    values = values * tl.rsqrt(tl.sum(values * values, 0) / width + eps)
    factors = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    if has_offset:
        values = values * (offset + factors)
    elif is_rms:  # rounded before the product, as models are trained
        values = values.to(rounded).to(tl.float32) * factors
    else:
        values = values * factors
    if has_bias:
        values += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    return values


@triton.jit
def normalise(
    x,
    weight,
    bias,
    out,
    codes,  # of whole rows alone
    scales,
    stride,  # numbers from a row of x to the next
    width,
    eps,
    offset,
    scale,
    inverse,
    block: tl.constexpr,  # the power of two at or above width
    is_rms: tl.constexpr,
    has_bias: tl.constexpr,
    has_offset: tl.constexpr,
    weight_a_head: tl.constexpr,
    form: tl.constexpr,
    is_given: tl.constexpr,
):
    """Write the normalised values of one head of one row."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, block)
    inside = at < width
    values = tl.load(x + row * stride + head * width + at, mask=inside, other=0.0).to(tl.float32)
    first = head * width if weight_a_head else 0
    kind: tl.constexpr = x.dtype.element_ty
    values = normalised(
        *(values, at, inside, weight + first, bias + first, width, eps, offset),
        *(kind, is_rms, has_bias, has_offset),
    )
    write_results(
        *(values.to(kind), out, codes, scales, row * tl.num_programs(1) + head, width, at, inside),
        *(scale, inverse, form, is_given),
    )


@triton.jit
def add_and_normalise(
    x,
    y,
    weight,
    bias,
    total,
    out,
    codes,
    scales,
    x_stride,  # numbers from a row to the next
    y_stride,
    width,
    eps,
    offset,
    scale,
    inverse,
    block: tl.constexpr,  # the power of two at or above width
    is_rms: tl.constexpr,
    has_bias: tl.constexpr,
    has_offset: tl.constexpr,
    form: tl.constexpr,
    is_given: tl.constexpr,
):
    """Write the sum of a row of x and one of y, and its normalised values."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    inside = at < width
    values = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    values += tl.load(y + row * y_stride + at, mask=inside, other=0.0).to(tl.float32)
    kind: tl.constexpr = x.dtype.element_ty
    # Rounded, since what is normalised is the sum that later operations read.
    summed = values.to(kind)
    tl.store(total + row * width + at, summed, mask=inside)
    values = normalised(
        *(summed.to(tl.float32), at, inside, weight, bias, width, eps, offset),
        *(kind, is_rms, has_bias, has_offset),
    )
    write_results(
        *(values.to(kind), out, codes, scales, row, width, at, inside),
        *(scale, inverse, form, is_given),
    )


def norm(x: Tensor, kind: Norm, home: Accelerator) -> Tensor:
    """Return normalised rows; x may be some columns of wider rows."""
    out = x.new_empty(x.shape)
    norm_into(Results(out), x, kind, home)
    return out


def norm_into(results: Results, x: Tensor, kind: Norm, home: Accelerator) -> None:
    """Write rows, or heads of rows, once they are normalised."""
    width = x.shape[1] // kind.heads
    home.launch(
        normalise,
        (len(x), kind.heads),
        (x, *_factors(kind), *results.tensors(x)),
        (x.stride(0), width, kind.eps, kind.offset, *results.numbers),
        weight_a_head=kind.weight_a_head,
        **_constants(width, kind),
        **results.constants,
    )


def add_norm_into(results: Results, x: Tensor, y: Tensor, kind: Norm, home: Accelerator) -> Tensor:
    """Return sums of rows, and write these normalised; x and y may be columns of wider rows."""
    width = x.shape[1]
    total = x.new_empty(x.shape)
    home.launch(
        add_and_normalise,
        (len(x),),
        (x, y, *_factors(kind), total, *results.tensors(x)),
        (x.stride(0), y.stride(0), width, kind.eps, kind.offset, *results.numbers),
        **_constants(width, kind),
        **results.constants,
    )
    return total


def _factors(kind: Norm) -> tuple[Tensor, Tensor]:
    """Return the weights and addends; weights in place of addends that there are none of."""
    weight: Tensor = kind.weight
    bias: Tensor | None = kind.bias
    return weight, bias if bias is not None and _has_bias(kind) else weight


def _has_bias(kind: Norm) -> bool:
    return not kind.is_rms and kind.bias is not None


def _constants(width: int, kind: Norm) -> dict[str, Any]:
    """Return what a kernel is compiled for."""
    block = triton.next_power_of_2(width)
    return {
        "block": block,
        "is_rms": kind.is_rms,
        "has_bias": _has_bias(kind),
        "has_offset": kind.is_rms and bool(kind.offset),
        "num_warps": 4 if block <= _WIDE else 8,
    }
