"""Cuts unlikely tokens from the race: min-p, then top-k, then top-p.

Each works on what the one before has left. All sums run over one row in one order, so that what
is kept does not depend on the batch. Tokens that tie at the edge of top-k all stay.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]

_FIRST_LOOK = 256  # so many of the likeliest tokens are sorted first for top-p; mostly enough
_NEXT_LOOK = 16  # … and so many times more whenever they were not


def survivors(scores: Doubles, min_p: float, top_k: int, top_p: float) -> Integers:
    """Ids of the tokens that stay, given their logits over the temperature; never none."""
    ids = np.flatnonzero(scores > -np.inf)
    if min_p > 0.0:
        kept = scores[ids]
        # p >= min_p · p_max, said in logits
        ids = ids[kept >= kept.max() + math.log(min_p)]
    if 0 < top_k < len(ids):
        kept = scores[ids]
        edge = np.partition(kept, len(ids) - top_k)[len(ids) - top_k]
        ids = ids[kept >= edge]
    if top_p < 1.0:
        ids = _nucleus(ids, scores[ids], top_p)
    return ids


def _nucleus(ids: Integers, scores: Doubles, top_p: float) -> Integers:
    """The likeliest tokens, each of which has less than top_p of probability before it."""
    shares = np.exp(scores - scores.max())
    wanted = top_p * shares.sum()
    look = _FIRST_LOOK
    while True:
        if look < len(ids):
            edge = np.partition(shares, len(ids) - look)[len(ids) - look]
            likely = np.flatnonzero(shares >= edge)
        else:
            likely = np.arange(len(ids))
        likely = likely[np.argsort(-shares[likely], kind="stable")]
        reached = np.cumsum(shares[likely])
        if reached[-1] >= wanted or len(likely) == len(ids):
            count = int(np.searchsorted(reached, wanted, side="left")) + 1
            return ids[likely[:count]]
        look *= _NEXT_LOOK
