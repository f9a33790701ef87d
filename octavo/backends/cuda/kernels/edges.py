"""Finds which tokens the filters of a row keep, and changes single logits by rules.

The kept tokens of a row are those above an edge, and of those at the edge the first ones. An edge
is found without sorting: two bits of a number at a time, the highest first, by adding up what is at
or above each of three numbers. A program has a row, so that its sums do not depend on others.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.backends.cuda.accelerator import Accelerator
from octavo.backends.cuda.filters import Filters

# A thread of 8 warps has 4 tokens at once, and three sums of each in double precision.
_BLOCK = 1024
_CHANGES = 256  # of a program


@triton.jit
def order_of(values):
    """Return unsigned numbers in the order of floats, in which both zeros are equal."""
    bits = tl.where(values == 0, 0.0, values).to(tl.int32, bitcast=True)
    flipped = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return flipped.to(tl.uint32, bitcast=True) ^ 0x80000000


@triton.jit
def is_allowed(inside, at, masks, row, words, has_masks: tl.constexpr):
    """Return which tokens may be drawn."""
    if has_masks:
        word = tl.load(masks + row * words + at // 32, mask=inside, other=0)
        inside = inside & (((word >> (at % 32)) & 1) != 0)
    return inside


@triton.jit
def tokens_at(
    start,
    logits,  # where those of the row begin
    masks,
    row,
    size,
    words,
    temperature,
    least,  # score of tokens that count
    bound,  # the order of the least logit of tokens that count
    block: tl.constexpr,
    has_masks: tl.constexpr,
):
    """Return the numbers, logits, orders and scores of some tokens, and which of them count."""
    at = start + tl.arange(0, block)
    inside = at < size
    raw = tl.load(logits + at, mask=inside, other=0.0)
    order, score = order_of(raw), raw.to(tl.float64) / temperature
    counted = is_allowed(inside, at, masks, row, words, has_masks)
    return at, raw, order, score, counted & (score >= least) & (order >= bound)


@triton.jit
def reached(
    logits,  # where those of the row begin
    masks,
    row,
    size,
    words,
    temperature,
    best,
    least,  # score of tokens that count
    bound,  # the order of the least logit of tokens that count
    only,  # if tokens are ordered by number: the order of the logit that they have
    wanted,
    block: tl.constexpr,
    has_masks: tl.constexpr,
    by: tl.constexpr,  # 0: tokens count once; 1: by their share; 2: once, ordered by number
):
    """Return the largest number at or above which there is at least what is wanted."""
    found, shift = tl.full((), 0, tl.uint32), tl.full((), 30, tl.uint32)
    for _ in range(16):
        one = found + (tl.full((), 1, tl.uint32) << shift)
        two = found + (tl.full((), 2, tl.uint32) << shift)
        three = found + (tl.full((), 3, tl.uint32) << shift)
        ones = tl.zeros((block,), tl.float64)
        twos = tl.zeros((block,), tl.float64)
        threes = tl.zeros((block,), tl.float64)
        for start in range(0, size, block):
            at, _raw, order, score, counted = tokens_at(
                *(start, logits, masks, row, size, words, temperature, least, bound),
                *(block, has_masks),
            )
            if by == 1:
                weight = tl.where(counted, tl.exp(score - best), 0.0)
            else:
                if by == 2:
                    counted = counted & (order == only)
                    order = 0xFFFFFFFF - at.to(tl.uint32)
                weight = tl.where(counted, 1.0, 0.0).to(tl.float64)
            ones += tl.where(order >= one, weight, 0.0)
            twos += tl.where(order >= two, weight, 0.0)
            threes += tl.where(order >= three, weight, 0.0)
        digit = (tl.sum(ones, 0) >= wanted).to(tl.uint32)
        digit += (tl.sum(twos, 0) >= wanted).to(tl.uint32)
        digit += (tl.sum(threes, 0) >= wanted).to(tl.uint32)
        found += digit << shift
        shift -= 2
    return found


@triton.jit
def share_of_row(
    logits,
    masks,
    row,
    size,
    words,
    temperature,
    best,
    least,
    bound,
    share,
    block: tl.constexpr,
    has_masks: tl.constexpr,
):
    """Return the order of the last logit that top-p keeps, and the last token with it."""
    sums = tl.zeros((block,), tl.float64)
    for start in range(0, size, block):
        _at, _raw, _order, score, counted = tokens_at(
            *(start, logits, masks, row, size, words, temperature, least, bound),
            *(block, has_masks),
        )
        sums += tl.where(counted, tl.exp(score - best), 0.0)
    wanted = share * tl.sum(sums, 0)
    edge = reached(
        *(logits, masks, row, size, words, temperature, best, least, bound, bound),
        *(wanted, block, has_masks, 1),
    )
    # Of the tokens at the edge there may be too many.
    sums = tl.zeros((block,), tl.float64)
    weights = tl.zeros((block,), tl.float64)
    ties = tl.zeros((block,), tl.int32)
    for start in range(0, size, block):
        _at, _raw, order, score, counted = tokens_at(
            *(start, logits, masks, row, size, words, temperature, least, edge),
            *(block, has_masks),
        )
        weight = tl.exp(score - best)
        sums += tl.where(counted & (order > edge), weight, 0.0)
        is_tie = counted & (order == edge)
        weights = tl.maximum(weights, tl.where(is_tie, weight, 0.0))
        ties += is_tie.to(tl.int32)
    last = size
    lacking = tl.ceil((wanted - tl.sum(sums, 0)) / tl.max(weights, 0))
    if lacking < tl.sum(ties, 0).to(tl.float64):
        last_order = reached(
            *(logits, masks, row, size, words, temperature, best, least, edge, edge),
            *(tl.maximum(lacking, 1.0), block, has_masks, 2),
        )
        last = (0xFFFFFFFF - last_order).to(tl.int32)
    return edge, last


@triton.jit
def edge_of_row(
    logits,
    temperatures,  # 0 or below: the row has no filters
    floors,  # logarithms of min-p
    shares,  # top-p
    counts,  # top-k
    masks,
    edges,
    lasts,
    size,
    words,  # of a row of masks
    block: tl.constexpr,
    has_masks: tl.constexpr,
):
    """Write the last logit that a row's filters keep, and the last token that they keep of it."""
    row = tl.program_id(0).to(tl.int64)
    temperature, floor = tl.load(temperatures + row), tl.load(floors + row)
    share, count = tl.load(shares + row), tl.load(counts + row)
    is_filtered = (floor > float("-inf")) | (share < 1.0) | (count > 0)
    edge, last = float("-inf"), size
    if (temperature > 0) & is_filtered:
        own = logits + row * size
        bound = tl.full((), 0, tl.uint32)
        highest = tl.full((block,), float("-inf"), tl.float32)
        for start in range(0, size, block):
            _at, raw, _order, _score, counted = tokens_at(
                *(start, own, masks, row, size, words, temperature, float("-inf"), bound),
                *(block, has_masks),
            )
            highest = tl.maximum(highest, tl.where(counted, raw, float("-inf")))
        best = tl.max(highest, 0).to(tl.float64) / temperature
        least = best + floor
        if count > 0:
            bound = reached(
                *(own, masks, row, size, words, temperature, best, least, bound, bound),
                *(count.to(tl.float64), block, has_masks, 0),
            )
        if share < 1.0:
            bound, last = share_of_row(
                *(own, masks, row, size, words, temperature, best, least, bound, share),
                *(block, has_masks),
            )
        lowest = tl.full((block,), float("inf"), tl.float32)
        for start in range(0, size, block):
            _at, raw, _order, _score, counted = tokens_at(
                *(start, own, masks, row, size, words, temperature, least, bound),
                *(block, has_masks),
            )
            lowest = tl.minimum(lowest, tl.where(counted, raw, float("inf")))
        edge = tl.min(lowest, 0)
    tl.store(edges + row, edge)
    tl.store(lasts + row, last)


@triton.jit(do_not_specialize=["count"])
def change_numbers(logits, places, numbers, count, block: tl.constexpr):
    """Write logits with an addend, a factor, and two numbers taken away."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < count
    place = tl.load(places + at, mask=inside, other=0)
    value = tl.load(logits + place, mask=inside, other=0.0)
    value += tl.load(numbers + at, mask=inside, other=0.0)
    factor = tl.load(numbers + count + at, mask=inside, other=1.0)
    value = tl.where(value > 0, tl.div_rn(value, factor), value * factor)
    value -= tl.load(numbers + 2 * count + at, mask=inside, other=0.0)
    value -= tl.load(numbers + 3 * count + at, mask=inside, other=0.0)
    tl.store(logits + place, value, mask=inside)


def edges(
    logits: Tensor, temperatures: Tensor, masks: Tensor | None, filters: Filters, home: Accelerator
) -> tuple[Tensor, Tensor]:
    """Return the edge of each row, as octavo/backends/cuda/filters.py does of allowed logits."""
    rows, size = logits.shape
    values = logits.new_empty(rows)
    last = logits.new_empty(rows, dtype=torch.int32)
    home.launch(
        edge_of_row,
        (rows,),
        (logits, temperatures, *filters, filters.counts if masks is None else masks, values, last),
        (size, 0 if masks is None else masks.shape[1]),
        block=_BLOCK,
        has_masks=masks is not None,
        num_warps=8,
    )
    return values, last


def change_logits(logits: Tensor, places: Tensor, numbers: Tensor, home: Accelerator) -> None:
    """Change single logits in place: those of `places` by the numbers [4, changes]."""
    count = len(places)
    home.launch(
        change_numbers,
        (triton.cdiv(count, _CHANGES),),
        (logits, places, numbers),
        (count,),
        block=_CHANGES,
        num_warps=4,
        enable_fp_fusion=False,  # each operation is rounded, as the host rounds it
    )
