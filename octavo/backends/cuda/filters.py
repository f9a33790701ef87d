"""Filters of unlikely tokens on a device: min-p, then top-k, then top-p, as torch operations.

In the order of a row's tokens, by descending logit and then by number, those that are kept are the
first ones. So an edge says which they are: the logit of the last of them, and its number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from octavo.backends.base import Doubles, Ints
from octavo.backends.step import SlotSampling


class Filters(NamedTuple):
    """The filters of some rows."""

    floors: Tensor  # [rows], float64: the logarithm of min-p; -infinity: off
    shares: Tensor  # [rows], float64: top-p; 1: off
    counts: Tensor  # [rows], int32: top-k; 0: off

    def of(self, rows: slice | Tensor) -> Filters:
        """Return the filters of some of the rows."""
        return Filters(self.floors[rows], self.shares[rows], self.counts[rows])


class HostFilters(NamedTuple):
    """The filters of some rows on the host."""

    floors: Doubles
    shares: Doubles
    counts: Ints

    @property
    def are_off(self) -> bool:
        return not (self.counts.any() or (self.shares < 1).any() or (self.floors > -np.inf).any())


def host_filters(samplings: Sequence[SlotSampling]) -> HostFilters:
    """Return the filters of slots; a greedy one has none."""
    count = len(samplings)
    found = HostFilters(np.full(count, -np.inf), np.ones(count), np.zeros(count, np.int32))
    for place, sampling in enumerate(samplings):
        if sampling.temperature and sampling.has_filters:
            found.floors[place] = math.log(sampling.min_p) if sampling.min_p > 0 else -np.inf
            found.shares[place] = min(sampling.top_p, 1.0)
            found.counts[place] = max(sampling.top_k, 0)
    return found


def edges(logits: Tensor, temperatures: Tensor, filters: Filters) -> tuple[Tensor, Tensor]:
    """Return the edge of each row: the last logit that is kept, and the last token with it.

    Logits of -infinity are never kept. What a row without a temperature has means nothing.
    """
    size = logits.shape[1]
    ordered, ids = logits.sort(dim=1, descending=True, stable=True)
    scores = ordered.double() / torch.where(temperatures > 0, temperatures, 1.0)[:, None]
    best = scores[:, :1].clone()
    kept = (scores >= best + filters.floors[:, None]) & (ordered > -torch.inf)
    last = filters.counts.long().clamp(1, size) - 1
    kept &= (ordered >= ordered.gather(1, last[:, None])) | (filters.counts == 0)[:, None]
    shares = scores.sub_(best).exp_().masked_fill_(~kept, 0.0)
    sums = shares.cumsum(1)
    wanted = filters.shares[:, None] * sums[:, -1:]
    before = functional.pad(sums[:, :-1], (1, 0))
    kept &= (before < wanted) | (filters.shares >= 1)[:, None]
    last = (kept.sum(1, keepdim=True) - 1).clamp(min=0)
    return ordered.gather(1, last)[:, 0], ids.gather(1, last)[:, 0]


def are_kept(logits: Tensor, temperatures: Tensor, filters: Filters) -> Tensor:
    """Return which tokens the filters keep: [rows, tokens]."""
    values, last = (each[:, None] for each in edges(logits, temperatures, filters))
    ids = torch.arange(logits.shape[1], device=logits.device)
    return (logits > values) | ((logits == values) & (ids <= last))
