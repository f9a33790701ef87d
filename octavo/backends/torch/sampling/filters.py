"""Filters of unlikely tokens: min-p, then top-k, then top-p.

Each works on the result of the previous one. All sums run over one row in one order, so that the
result does not depend on the batch. Tokens that tie at the edge of top-k are all kept.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from octavo.backends.base import Doubles

Integers = NDArray[np.int64]

# For top-p, tokens are put into bins by score, and only the bin in which the sum is reached is
# sorted. Tokens this far below the best add nothing to any sum, and share the last bin.
_NUM_BINS = 4096
_FAR_BEHIND = 40.0


def survivors(scores: Doubles, min_p: float, top_k: int, top_p: float) -> Integers:
    """Return the ids of the tokens to keep (at least one), given logits over the temperature."""
    ids = np.flatnonzero(scores > -np.inf)
    if min_p > 0.0:
        kept = scores[ids]
        # p >= min_p · p_max, in terms of logits
        ids = ids[kept >= kept.max() + math.log(min_p)]
    if 0 < top_k < len(ids):
        kept = scores[ids]
        edge = np.partition(kept, len(ids) - top_k)[len(ids) - top_k]
        ids = ids[kept >= edge]
    if top_p < 1.0:
        ids = _nucleus(ids, scores[ids], top_p)
    return ids


def _nucleus(ids: Integers, scores: Doubles, top_p: float) -> Integers:
    """Return the most likely tokens, each with less than top_p of probability before it."""
    behind = scores.max() - scores
    shares = np.exp(-behind)
    width = min(float(behind.max()), _FAR_BEHIND) / (_NUM_BINS - 1) or 1.0
    bins = np.minimum(behind / width, _NUM_BINS - 1).astype(np.int64)
    reached = np.cumsum(np.bincount(bins, shares, _NUM_BINS))
    wanted = top_p * reached[-1]
    last = min(int(np.searchsorted(reached, wanted)), _NUM_BINS - 1)
    before = reached[last - 1] if last else 0.0
    there = np.flatnonzero(bins == last)
    there = there[np.argsort(behind[there], kind="stable")]  # ties go by token id
    count = int(np.searchsorted(before + np.cumsum(shares[there]), wanted)) + 1
    return np.concatenate((ids[bins < last], ids[there[:count]]))
