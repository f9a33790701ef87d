"""Draws tokens: scores with their noise, and the best of each row, in two passes.

The noise is that of octavo/backends/torch/sampling/noise.py to the bit, but for the logarithms,
which are the card's in double precision.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.backends.cuda.accelerator import Accelerator
from octavo.backends.cuda.filters import Filters
from octavo.backends.cuda.kernels.edges import edges, is_allowed

_BLOCK = 1024  # tokens of a program; the noise is computed in double precision, 8 tokens a thread
NOT_FINITE, NONE_LEFT = -1, -2  # in place of a token


@triton.jit
def best_of_part(
    logits,
    temperatures,  # 0: greedy; below 0: the row is not drawn from, nor read
    keys,  # two for each row
    masks,  # packed bits of each row
    edges,  # the last logit that filters keep
    lasts,  # … and the last token with it
    scores,
    tokens,
    finite,
    size,
    words,  # of a row of masks
    block: tl.constexpr,
    has_masks: tl.constexpr,
    has_edges: tl.constexpr,
):
    """Write the best score and its token in one part of one row, and whether all are finite."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = part * block + tl.arange(0, block)
    temperature = tl.load(temperatures + row)
    inside = at < tl.where(temperature < 0, 0, size)
    raw = tl.load(logits + row * size + at, mask=inside, other=0.0)
    # Infinities and NaN are the numbers that differ from themselves once they are multiplied by 0.
    are_numbers = raw * 0.0 == 0.0
    allowed = is_allowed(inside, at, masks, row, words, has_masks)
    if has_edges:
        edge, last = tl.load(edges + row), tl.load(lasts + row)
        allowed = allowed & ((raw > edge) | ((raw == edge) & (at <= last)))
    # A row with others fails. They are not compared: a NaN may give way to what is beyond the end.
    score = tl.where(are_numbers, raw, 0.0).to(tl.float64)
    if temperature > 0:
        first = tl.load(keys + 2 * row).to(tl.uint64, bitcast=True)
        second = tl.load(keys + 2 * row + 1).to(tl.uint64, bitcast=True)
        x = at.to(tl.uint64) * 0x9E3779B97F4A7C15 + first
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 + second
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB
        x = x ^ (x >> 31)
        u = ((x >> 12).to(tl.float64) + 0.5) * (1.0 / 4503599627370496.0)
        score = score / temperature - tl.log(-tl.log(u))
    score = tl.where(allowed, score, float("-inf"))
    place = row * tl.num_programs(1) + part
    tl.store(scores + place, tl.max(score, 0))
    tl.store(tokens + place, part * block + tl.argmax(score, 0))
    tl.store(finite + place, tl.min(are_numbers.to(tl.int32), 0))


@triton.jit
def best_of_row(scores, tokens, finite, out, parts, block: tl.constexpr):
    """Write the token of the best part of one row; among equals that of the first."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    inside = at < parts
    score = tl.load(scores + row * parts + at, mask=inside, other=float("-inf"))
    token = tl.load(tokens + row * parts + tl.argmax(score, 0)).to(tl.int64)
    token = tl.where(tl.max(score, 0) == float("-inf"), -2, token)
    is_finite = tl.min(tl.load(finite + row * parts + at, mask=inside, other=1), 0)
    tl.store(out + row, tl.where(is_finite == 0, -1, token))


def draw(
    logits: Tensor,
    temperatures: Tensor,
    keys: Tensor,
    masks: Tensor | None,
    filters: Filters | None,
    home: Accelerator,
) -> Tensor:
    """Return the token of each row [rows], or what failed in its place."""
    rows, size = logits.shape
    parts = triton.cdiv(size, _BLOCK)
    scores = logits.new_empty(rows, parts, dtype=torch.float64)
    tokens, finite = (logits.new_empty(rows, parts, dtype=torch.int32) for _ in range(2))
    out = logits.new_empty(rows, dtype=torch.int64)
    kept = (
        (scores, tokens) if filters is None else edges(logits, temperatures, masks, filters, home)
    )
    masked = tokens if masks is None else masks
    home.launch(
        best_of_part,
        (rows, parts),
        (logits, temperatures, keys, masked, *kept, scores, tokens, finite),
        (size, 0 if masks is None else masks.shape[1]),
        block=_BLOCK,
        has_masks=masks is not None,
        has_edges=filters is not None,
        num_warps=4,
    )
    home.launch(
        best_of_row,
        (rows,),
        (scores, tokens, finite, out),
        (parts,),
        block=triton.next_power_of_2(parts),
        num_warps=4,
    )
    return out
