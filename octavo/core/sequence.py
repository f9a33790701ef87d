"""One request's life inside the core: what is known of it, and how far its KV has been computed.

There are no phases. A sequence has known tokens and computed positions, and scheduling it is
letting the second catch up with the first:

    tokens    P P P P P P P P g g g ·        P prompt, g generated, · being sampled
              ├─────────────┤                num_computed   positions whose KV is a fact
              ├───────────────────┤          num_planned    … or is being computed in flight
              ├─────────────────────┤        num_expected   known tokens, and those being sampled

A chunk takes positions from num_planned on. If it reaches num_expected it samples, and
num_expected rises by one at once, so that the next plan can be made before this one has run.
A chunk may carry drafts past num_expected; its result says how many were right, and
num_planned falls back to num_computed behind the last right one.

The hardest invariant: 0 <= num_computed <= num_planned, and what lies between is exactly the
sum of this sequence's chunks in flight. Whatever takes the KV away (preemption) also disowns
those chunks and sets all three back, so that a late result can never be counted.
"""

from __future__ import annotations

from array import array
from enum import IntEnum

from octavo.core.request import Request
from octavo.core.stats import RequestStats

NO_SLOT = -1


class Status(IntEnum):
    """Where a sequence is; only a running one owns a slot and blocks."""

    WAITING = 0  # in the queue
    HELD = 1  # following a running sequence that computes its prefix
    RUNNING = 2
    FINISHED = 3


class Sequence:
    """Mutable state of one request; nobody outside the core writes to it."""

    __slots__ = (
        "cache_epoch",
        "catching_up",
        "commit_at",
        "digests",
        "drafts",
        "first_block",
        "followers",
        "held_since",
        "hold_reading",
        "max_total",
        "num_capacity",
        "num_committed",
        "num_computed",
        "num_expected",
        "num_free_needed",
        "num_overtaken",
        "num_planned",
        "num_prompt",
        "order",
        "request",
        "request_id",
        "slot",
        "stats",
        "status",
        "stop_ids",
        "tables",
        "tokens",
        "verifying",
    )

    def __init__(
        self, request: Request, order: tuple[float, float, int], max_total: int, now: float
    ) -> None:
        self.request = request
        self.request_id = request.request_id
        self.order = order  # smaller goes first: a total order, fixed for life
        self.tokens = array("i", request.prompt)
        self.tokens.extend(request.emitted)
        self.num_prompt = len(request.prompt)
        self.max_total = max_total
        stops = request.sampling.stop_token_ids
        eos = () if request.sampling.ignore_eos else request.eos_token_ids
        self.stop_ids: frozenset[int] = frozenset((*stops, *eos))

        self.status = Status.WAITING
        self.slot = NO_SLOT
        self.num_computed = 0
        self.num_planned = 0
        self.num_expected = len(self.tokens)
        self.catching_up = True  # from getting a slot until the first sample
        self.drafts: tuple[int, ...] = ()  # guesses to be planned
        self.verifying: tuple[int, ...] = ()  # guesses in flight
        # (computed positions to wait for, who waits): sequences held by this one
        self.followers: list[tuple[int, Sequence]] = []

        # The KV manager's part: a block table a group, alike in length.
        self.tables: tuple[list[int], ...] = ()
        self.num_capacity = 0  # positions the tables cover
        self.first_block: list[int] = []  # a group: blocks before this one are out of its window
        self.digests: list[bytes] = []  # chain hashes of the leading full blocks
        self.num_committed = 0  # leading blocks that are computed and offered to others
        self.commit_at = 0  # num_computed at which there is a further block to offer
        self.cache_epoch = -1  # the prefix-cache epoch its KV belongs to

        self.stats = RequestStats(request.arrival, self.num_prompt, now)
        self.num_overtaken = (
            0  # how many passed it, to run or to follow, while it was the queue's head
        )
        self.num_free_needed = 0  # free blocks below which it could not begin when last looked at
        self.hold_reading: tuple[float, ...] = ()  # of the hold clock, when it began to wait
        self.held_since = now

    @property
    def in_flight(self) -> bool:
        """Whether a step that has not come back computes or samples for this sequence."""
        return self.num_planned > self.num_computed or self.num_expected > len(self.tokens)

    def rewind(self) -> None:
        """Forget all that is computed or in flight; the known tokens stay."""
        self.slot = NO_SLOT
        self.num_computed = 0
        self.num_planned = 0
        self.num_expected = len(self.tokens)
        self.catching_up = True
        self.drafts = ()
        self.verifying = ()
