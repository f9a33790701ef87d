"""The exchange of sums between ranks that add up, on one machine or on several."""

from __future__ import annotations

from octavo.backends.native import _native
from octavo.distributed.context import RankPlace


def make_sums(place: RankPlace, ranks: _native.Ranks) -> _native.Sums:
    """Return the exchange of a rank, which all ranks of its machine make in one order."""
    if place.machine is None:
        return _native.SharedSums(ranks)
    at = place.machine
    return _native.NodeSums(ranks, at.node, at.nodes, at.parts)
