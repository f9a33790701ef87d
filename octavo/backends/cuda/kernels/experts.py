"""Mixtures of experts: each expert multiplies the rows that chose it, and no others.

A pair is a row and one expert that it chose. Pairs are sorted by expert on the device, so that the
host waits for nothing, and launches have as many programs for any choice: a graph holds for all.
An expert's rows are multiplied in tiles of one height, each sum in one order over the inputs, and a
row adds up its experts in the order of their numbers: its bits depend on itself alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.backends.cuda.accelerator import Accelerator
from octavo.backends.cuda.kernels.attention import product
from octavo.backends.cuda.kernels.gate import gated
from octavo.backends.torch.weights import TorchExperts
from octavo.program.listing import Mixture

# Rows of a tile. From 64 on, newer cards multiply by other instructions (wgmma, tcgen05), whose
# sums no test has seen; 32 read the weights half as often as 16, the least there is.
TILE = 32
_STEP_BYTES = 128  # of the inputs that are multiplied at once: a line of the card's memory
_OUTPUTS = 128  # of a program: as many of weights, of which half are gates and half their ups
_PAIRS = 2048  # that a program of the sort looks at together: 8 in each thread of 8 warps
_COLUMNS = 1024  # of a sum: 8 numbers in each thread of 4 warps, a load of 16 bytes


class Sorted(NamedTuple):
    """The pairs of a step's rows, ordered by their experts."""

    order: Tensor  # [pairs]: their numbers, which are row · top_k + place
    places: Tensor  # [pairs]: where each is in the order; -1 of rows that are none
    tiles: Tensor  # [tiles, 3]: an expert, its first pair in the order, how many there are
    top_k: int


@triton.jit
def _experts_of(chosen, marks, at, pairs, experts, top_k, has_absent: tl.constexpr):
    """Return the experts of some pairs; beyond all experts, those of pairs that are none."""
    inside = at < pairs
    found = tl.load(chosen + at, mask=inside, other=0).to(tl.int32)
    if has_absent:
        inside = inside & (tl.load(marks + at // top_k, mask=inside, other=-1) >= 0)
    return tl.where(inside, found, experts)


@triton.jit(do_not_specialize=["pairs"])
def sort_pairs(
    chosen,  # [rows, top_k]
    marks,  # [rows]: below 0, a row is none
    order,
    places,
    tiles,
    pairs,
    experts,
    top_k,
    tile: tl.constexpr,
    block: tl.constexpr,
    has_absent: tl.constexpr,
):
    """Write the order of one expert's pairs, and its tiles.

    Tiles begin at numbers that are known without those of other experts, so that some are empty.
    """
    expert = tl.program_id(0)
    less = tl.zeros((block,), tl.int32)
    same = tl.zeros((block,), tl.int32)
    for start in range(0, pairs, block):
        at = start + tl.arange(0, block)
        found = _experts_of(chosen, marks, at, pairs, experts, top_k, has_absent)
        less += (found < expert).to(tl.int32)
        same += (found == expert).to(tl.int32)
    begin, count = tl.sum(less, 0), tl.sum(same, 0)
    first, stop = begin // tile + expert, (begin + count) // tile + expert + 1
    if expert == experts - 1:  # behind it are the tiles that rows which are none would have
        stop = pairs // tile + experts
    for number in range(first, stop):
        done = (number - first) * tile
        tl.store(tiles + number * 3, expert)
        tl.store(tiles + number * 3 + 1, begin + done)
        tl.store(tiles + number * 3 + 2, tl.maximum(tl.minimum(count - done, tile), 0))
    for start in range(0, pairs, block):
        at = start + tl.arange(0, block)
        found = _experts_of(chosen, marks, at, pairs, experts, top_k, has_absent)
        is_own = found == expert
        place = begin + tl.cumsum(is_own.to(tl.int32), 0) - 1
        tl.store(order + place, at, mask=is_own)
        tl.store(places + at, place, mask=is_own)
        if has_absent:
            tl.store(places + at, -1, mask=(at < pairs) & (found == experts) & (expert == 0))
        begin += tl.sum(is_own.to(tl.int32), 0)


@triton.jit
def gate_pairs(
    x,
    matrices,  # [experts, 2 · outputs, inputs]: the gates of an expert, then its ups
    bias,
    tiles,
    order,
    inner,  # [pairs, outputs], in their order
    stride,  # numbers from a row of x to the next
    inputs,
    outputs,
    top_k,
    tile: tl.constexpr,
    num_outputs: tl.constexpr,
    step: tl.constexpr,
    activation: tl.constexpr,
    has_bias: tl.constexpr,
    exact: tl.constexpr,
):
    """Write activation(gates) · ups of one tile of pairs, and of some outputs."""
    number = tl.program_id(0)
    count = tl.load(tiles + number * 3 + 2)
    if count == 0:
        return
    expert, first = tl.load(tiles + number * 3).to(tl.int64), tl.load(tiles + number * 3 + 1)
    kind: tl.constexpr = x.dtype.element_ty
    t = tl.arange(0, tile)
    is_row = t < count
    row = (tl.load(order + first + t, mask=is_row, other=0) // top_k).to(tl.int64)
    n = tl.program_id(1) * num_outputs + tl.arange(0, num_outputs)
    is_output = n < outputs
    own = matrices + expert * 2 * outputs * inputs
    gates = tl.zeros((tile, num_outputs), tl.float32)
    ups = tl.zeros((tile, num_outputs), tl.float32)
    for at in tl.range(0, inputs, step, num_stages=3):
        k = at + tl.arange(0, step)
        inside = k < inputs
        values = tl.load(
            x + row[:, None] * stride + k[None, :], mask=is_row[:, None] & inside, other=0.0
        )
        weights = own + n[:, None] * inputs + k[None, :]
        is_weight = is_output[:, None] & inside
        of_gates = tl.load(weights, mask=is_weight, other=0.0)
        of_ups = tl.load(weights + outputs * inputs, mask=is_weight, other=0.0)
        gates += product(values, tl.trans(of_gates), exact)
        ups += product(values, tl.trans(of_ups), exact)
    # Rounded where operations of torch round.
    gates, ups = gates.to(kind).to(tl.float32), ups.to(kind).to(tl.float32)
    if has_bias:
        at = bias + expert * 2 * outputs + n
        gates += tl.load(at, mask=is_output, other=0.0).to(tl.float32)[None, :]
        ups += tl.load(at + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
        gates, ups = gates.to(kind).to(tl.float32), ups.to(kind).to(tl.float32)
    target = inner + (first + t).to(tl.int64)[:, None] * outputs + n[None, :]
    tl.store(target, gated(gates, ups, activation, kind), mask=is_row[:, None] & is_output)


@triton.jit
def weigh_pairs(
    inner,
    matrices,  # [experts, outputs, inputs]
    bias,
    weights,  # [rows, top_k]
    tiles,
    order,
    weighed,  # [pairs, outputs], in their order
    inputs,
    outputs,
    tile: tl.constexpr,
    num_outputs: tl.constexpr,
    step: tl.constexpr,
    has_bias: tl.constexpr,
    exact: tl.constexpr,
):
    """Write some outputs of one tile of pairs, each times its pair's weight."""
    number = tl.program_id(0)
    count = tl.load(tiles + number * 3 + 2)
    if count == 0:
        return
    expert, first = tl.load(tiles + number * 3).to(tl.int64), tl.load(tiles + number * 3 + 1)
    kind: tl.constexpr = inner.dtype.element_ty
    t = tl.arange(0, tile)
    is_row = t < count
    row = (first + t).to(tl.int64)
    n = tl.program_id(1) * num_outputs + tl.arange(0, num_outputs)
    is_output = n < outputs
    own = matrices + expert * outputs * inputs
    sums = tl.zeros((tile, num_outputs), tl.float32)
    for at in tl.range(0, inputs, step, num_stages=3):
        k = at + tl.arange(0, step)
        inside = k < inputs
        values = tl.load(
            inner + row[:, None] * inputs + k[None, :], mask=is_row[:, None] & inside, other=0.0
        )
        factors = tl.load(
            own + n[:, None] * inputs + k[None, :], mask=is_output[:, None] & inside, other=0.0
        )
        sums += product(values, tl.trans(factors), exact)
    sums = sums.to(kind).to(tl.float32)
    if has_bias:
        added = tl.load(bias + expert * outputs + n, mask=is_output, other=0.0).to(tl.float32)
        sums = (sums + added[None, :]).to(kind).to(tl.float32)
    pair = tl.load(order + first + t, mask=is_row, other=0)
    weight = tl.load(weights + pair, mask=is_row, other=0.0).to(tl.float32)
    target = weighed + row[:, None] * outputs + n[None, :]
    tl.store(target, (sums * weight[:, None]).to(kind), mask=is_row[:, None] & is_output)


@triton.jit
def add_pairs(
    weighed,
    places,
    out,
    width,
    top_k: tl.constexpr,
    block_k: tl.constexpr,
    block: tl.constexpr,
):
    """Write the sum of one row's pairs in the order of their experts; of a row that is none, 0."""
    kind: tl.constexpr = weighed.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < width
    k = tl.arange(0, block_k)
    own = tl.load(places + row * top_k + k, mask=k < top_k, other=-1)
    sums = tl.zeros((block,), tl.float32)
    last = tl.full((), -1, tl.int32)
    for _ in range(top_k):
        last = tl.min(tl.where(own > last, own, 0x7FFFFFFF), 0)
        is_pair = inside & (last < 0x7FFFFFFF)
        values = tl.load(weighed + last.to(tl.int64) * width + at, mask=is_pair, other=0.0)
        sums = (sums + values.to(tl.float32)).to(kind).to(tl.float32)
    tl.store(out + row * width + at, sums.to(kind), mask=inside)


def mix(
    x: Tensor,
    weights: Tensor,
    chosen: Tensor,
    mixture: Mixture,
    home: Accelerator,
    marks: Tensor | None = None,
) -> Tensor:
    """Add up the outputs of each row's chosen experts, in the order of their numbers.

    Rows whose marks are below 0 are none: no expert reads its weights for them.
    """
    experts = mixture.gate_up
    assert isinstance(experts, TorchExperts)
    found = sort(chosen, len(experts.values), home, marks)
    inner = _gated(x, found, mixture, home)
    return _added(_weighed(inner, weights, found, mixture, home), found, x, home)


def sort(chosen: Tensor, experts: int, home: Accelerator, marks: Tensor | None) -> Sorted:
    """Order the pairs by their experts, and divide them into tiles."""
    top_k, pairs = chosen.shape[1], chosen.numel()
    order, places = (chosen.new_empty(pairs, dtype=torch.int32) for _ in range(2))
    tiles = chosen.new_empty(pairs // TILE + experts, 3, dtype=torch.int32)
    home.launch(
        sort_pairs,
        (experts,),
        (chosen.contiguous(), order if marks is None else marks, order, places, tiles),
        (pairs, experts, top_k),
        tile=TILE,
        block=_PAIRS,
        has_absent=marks is not None,
        num_warps=8,
    )
    return Sorted(order, places, tiles, top_k)


def _gated(x: Tensor, found: Sorted, mixture: Mixture, home: Accelerator) -> Tensor:
    """Return the gated rows of all pairs, in their order."""
    matrices, bias = _values(mixture.gate_up), mixture.gate_up_bias
    _, both, inputs = matrices.shape
    outputs = both // 2
    inner = x.new_empty(len(found.order), outputs)
    home.launch(
        gate_pairs,
        (len(found.tiles), triton.cdiv(outputs, _OUTPUTS // 2)),
        (x, matrices, x if bias is None else bias, found.tiles, found.order, inner),
        (x.stride(0), inputs, outputs, found.top_k),
        num_outputs=_OUTPUTS // 2,
        activation=mixture.activation,
        has_bias=bias is not None,
        **_sizes(x),
    )
    return inner


def _weighed(
    inner: Tensor, weights: Tensor, found: Sorted, mixture: Mixture, home: Accelerator
) -> Tensor:
    """Return the products of all pairs with their weights, in their order."""
    matrices, bias = _values(mixture.down), mixture.down_bias
    _, outputs, inputs = matrices.shape
    weighed = inner.new_empty(len(inner), outputs)
    first = inner if bias is None else bias
    home.launch(
        weigh_pairs,
        (len(found.tiles), triton.cdiv(outputs, _OUTPUTS)),
        (inner, matrices, first, weights.contiguous(), found.tiles, found.order, weighed),
        (inputs, outputs),
        num_outputs=_OUTPUTS,
        has_bias=bias is not None,
        **_sizes(inner),
    )
    return weighed


def _added(weighed: Tensor, found: Sorted, like: Tensor, home: Accelerator) -> Tensor:
    out, top_k = like.new_empty(like.shape), found.top_k
    rows, width = out.shape
    home.launch(
        add_pairs,
        (rows, triton.cdiv(width, _COLUMNS)),
        (weighed, found.places, out),
        (width,),
        top_k=top_k,
        block_k=triton.next_power_of_2(top_k),
        block=_COLUMNS,
        num_warps=4,
    )
    return out


def _values(experts: object) -> Tensor:
    assert isinstance(experts, TorchExperts)
    return experts.values


def _sizes(x: Tensor) -> dict[str, int]:
    """Return the constants that both products are compiled for."""
    return {
        "tile": TILE,
        "step": _STEP_BYTES // x.element_size(),
        "exact": x.dtype == torch.float32,
        "num_warps": 4,
    }
