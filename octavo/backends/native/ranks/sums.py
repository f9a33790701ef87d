"""Ranks that add up: each has some heads, some inner numbers of a layer, and its own KV of these.

The second product of each pair has only some inputs in a rank. What all ranks make of theirs is
added up in the order of the ranks, in the program (csrc/runtime/sums.h). A rank else computes as
one process does, with a smaller model.
"""

from __future__ import annotations

from octavo.backends.base import KVLayout, StepSize
from octavo.backends.native import _native
from octavo.backends.native.backend import NativeBackend
from octavo.backends.native.ranks.messages import LeadingBackend
from octavo.backends.native.stages.cache_groups import part_groups
from octavo.backends.part_layout import rank_layout
from octavo.distributed.context import RankPlace
from octavo.layers import Model
from octavo.program.listing import Listing
from octavo.program.passes.collectives import gather_in_place, insert_collectives


class SummingBackend(NativeBackend):
    """The backend of a further rank."""

    _columns = 0  # of the logits, in each rank

    @property
    def num_threads(self) -> int:
        assert self.ranks is not None
        return self.ranks.ranks * super().num_threads

    def _rewritten(self, listing: Listing, model: Model) -> Listing:
        place = self._options.place
        assert isinstance(place, RankPlace)
        context = place.context
        insert_collectives(listing, model, context)
        # The logits of the first rank of a machine are in memory that its ranks map.
        self._columns = gather_in_place(listing, context.rank)
        return super()._rewritten(listing, model)

    def _cache_groups(
        self, layout: KVLayout, block_size: int
    ) -> tuple[list[_native.CacheGroup], int]:
        own = rank_layout(layout, self._first.model)
        return part_groups(own, layout, block_size, self._options.kv_dtype)


class LeadingSummingBackend(SummingBackend, LeadingBackend):
    """The backend of the first rank, whose steps the others compute with it."""

    def _reserve_rows(self, size: StepSize) -> int:
        assert self.ranks is not None
        return self.ranks.ranks * super()._reserve_rows(size)  # each has its own
