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

# For a share, tokens are put into bins by distance, and only the bin in which the sum is reached is
# sorted. Tokens this far behind the best add nothing to any sum, and share the last bin.
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
        behind = scores[ids].max() - scores[ids]
        ids = ids[nearest(behind, np.exp(-behind), top_p)]
    return ids


def nearest(distances: Doubles, shares: Doubles, wanted_share: float) -> Integers:
    """Return the places with the least distances, each with less than a share before it.

    Ties go by place. Distances are 0 or more.
    """
    width = min(float(distances.max()), _FAR_BEHIND) / (_NUM_BINS - 1) or 1.0
    bins = np.minimum(distances / width, _NUM_BINS - 1).astype(np.int64)
    reached = np.cumsum(np.bincount(bins, shares, _NUM_BINS))
    wanted = wanted_share * reached[-1]
    last = min(int(np.searchsorted(reached, wanted)), _NUM_BINS - 1)
    before = reached[last - 1] if last else 0.0
    there = np.flatnonzero(bins == last)
    there = there[np.argsort(distances[there], kind="stable")]  # ties go by place
    count = int(np.searchsorted(before + np.cumsum(shares[there]), wanted)) + 1
    return np.concatenate((np.flatnonzero(bins < last), there[:count]))
