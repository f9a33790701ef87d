"""Multiplies an activation of some columns with other columns, in one pass over both."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from octavo.backends.cuda.accelerator import Accelerator
from octavo.backends.cuda.kernels.rounding import Results, write_results

_BLOCK = 1024  # columns of a program: 8 numbers in each thread of 4 warps, a load of 16 bytes
# Of whole rows, whose largest number their scale depends on: columns that a warp has, which are 32
# in each thread, and the most warps of a program.
_OF_WARP, _MOST_WARPS = 1024, 32


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + exp(-x)), without an overflow on either side."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1 / (1 + small), small / (1 + small))


@triton.jit
def activated(x, activation: tl.constexpr):
    """Return an activation, by its name in a listing."""
    if activation == "Silu":
        return x * sigmoid(x)
    elif activation == "Sigmoid":
        return sigmoid(x)
    elif activation == "GeluErf":
        return x * 0.5 * (1 + tl.erf(x * 0.7071067811865476))
    elif activation == "GeluTanh":  # tanh(y) is 2 · sigmoid(2 y) - 1, and 1.59… is 2 · sqrt(2 / pi)
        return x * sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif activation == "Relu":
        return tl.maximum(x, 0.0)
    else:
        tl.static_assert(activation == "Relu2", "an activation without a form here")
        positive = tl.maximum(x, 0.0)
        return positive * positive


@triton.jit
def gated(gate, up, activation: tl.constexpr, kind: tl.constexpr):
    """Return activation(gate) · up of numbers in float32, in the type of rows."""
    if activation == "ClampedSwiglu":  # gpt-oss
        gate = tl.minimum(gate, 7.0)
        up = tl.minimum(tl.maximum(up, -7.0), 7.0)
        product = (up + 1) * gate * sigmoid(gate * 1.702)
    else:
        # Rounded between, as the two operations that this replaces round.
        product = activated(gate, activation).to(kind).to(tl.float32) * up
    return product.to(kind)


@triton.jit
def gate_rows(
    gates,
    ups,
    out,
    codes,  # of whole rows alone
    scales,
    gates_stride,  # numbers from a row to the next
    ups_stride,
    width,
    scale,
    inverse,
    block: tl.constexpr,
    activation: tl.constexpr,
    form: tl.constexpr,
    is_given: tl.constexpr,
):
    """Write the products of one part of one row, or of all of it."""
    kind: tl.constexpr = gates.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < width
    gate = tl.load(gates + row * gates_stride + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(ups + row * ups_stride + at, mask=inside, other=0.0).to(tl.float32)
    product = gated(gate, up, activation, kind)
    write_results(
        *(product, out, codes, scales, row, width, at, inside),
        *(scale, inverse, form, is_given),
    )


def gate(gates: Tensor, ups: Tensor, activation: str, home: Accelerator) -> Tensor:
    """Return activation(gates) · ups; both may be some columns of wider rows."""
    out = gates.new_empty(gates.shape)
    gate_into(Results(out), gates, ups, activation, home)
    return out


def gate_into(
    results: Results, gates: Tensor, ups: Tensor, activation: str, home: Accelerator
) -> None:
    """Write activation(gates) · ups."""
    rows, width = gates.shape
    block, warps = _BLOCK, 4
    if results.codes is not None:
        block = triton.next_power_of_2(width)
        warps = min(max(block // _OF_WARP, 4), _MOST_WARPS)
    home.launch(
        gate_rows,
        (rows, triton.cdiv(width, block)),
        (gates, ups, *results.tensors(gates)),
        (gates.stride(0), ups.stride(0), width, *results.numbers),
        block=block,
        activation=activation,
        num_warps=warps,
        **results.constants,
    )
