"""Where each living sequence is, and what it takes to move it from one place to another.

                   _wait              _begin                     _end
    (added) ─────────────▶ waiting ─────────────▶ running ─────────────▶ (finished)
                            │  ▲  ▲                 │  │
                    _follow │  │  └─────────────────┘  │ leads its followers, and lets
                            ▼  │ _lead_on   (preempted) │ them go when it leaves
                            held ◀─────────────────────┘

A sequence is in one of these places and in one list. Only a running one owns anything: a slot,
blocks, chunks in flight, an adapter's place. `_vacate` takes all of it back, in one place, so
that nothing can be forgotten on one of the ways out (end, abort, failure, preemption).
"""

from __future__ import annotations

from bisect import insort
from collections import deque

from octavo.core import stats as why
from octavo.core.block_pool import BlockPool
from octavo.core.config import CoreConfig
from octavo.core.kv_manager import KVManager
from octavo.core.limits import limiters_for
from octavo.core.outcome import Outcome
from octavo.core.plan import NewSlot
from octavo.core.plan_draft import InFlight
from octavo.core.queue import WaitingQueue
from octavo.core.request import TokenEvent
from octavo.core.sequence import Sequence, Status
from octavo.core.stats import EngineStats, HoldClock


class Roster:
    """All sequences that live."""

    def __init__(self, config: CoreConfig, cache_key: bytes, pool: BlockPool | None = None) -> None:
        self.config = config
        self.kv = KVManager(config, cache_key, pool)
        self.limiters = limiters_for(config)
        self.sequences: dict[str, Sequence] = {}  # all, by request
        self.queue = WaitingQueue()
        self.running: list[Sequence] = []  # sorted by order
        self.slots: list[Sequence | None] = [None] * config.max_num_seqs
        self.free_slots = [*range(config.max_num_seqs - 1, -1, -1)]
        self.freed_slots: list[int] = []  # those the workers have not been told to forget
        self.flights: deque[InFlight] = deque()  # oldest first
        self.stats = EngineStats()
        self.hold_clock = HoldClock()

    def _parent(self, sequence: Sequence) -> Sequence | None:
        parent_id = sequence.request.parent_id
        return None if parent_id is None else self.sequences.get(parent_id)

    def _wait(self, sequence: Sequence, now: float) -> None:
        self.hold_clock.advance(now)
        sequence.hold_reading = self.hold_clock.read()
        self.queue.add(sequence)

    def _follow(self, sequence: Sequence, source: Sequence, target: int, now: float) -> None:
        """Stand aside until `source` has computed the prefix both share."""
        self.hold_clock.since(sequence.hold_reading, sequence.stats.held_seconds)
        sequence.held_since = now
        source.followers.append((target, sequence))

    def _lead_on(self, source: Sequence, now: float) -> None:
        """Send followers back to the queue that this sequence has, or no longer can have, led."""
        waiting = []
        for target, follower in source.followers:
            if follower.status is not Status.HELD:
                continue  # aborted
            if source.catching_up and source.num_computed < target:
                waiting.append((target, follower))
                continue
            _count_following(follower, now)
            self.queue.unhold(follower)
            self.hold_clock.advance(now)
            follower.hold_reading = self.hold_clock.read()
        source.followers = waiting

    def _begin(self, sequence: Sequence, num_cached: int, now: float) -> NewSlot:
        """Give an admitted sequence its slot and its place among the running: its whole state."""
        sequence.status = Status.RUNNING
        sequence.slot = self.free_slots.pop()
        self.slots[sequence.slot] = sequence
        insort(self.running, sequence, key=order_of)
        stats = sequence.stats
        self.hold_clock.since(sequence.hold_reading, stats.held_seconds)
        if stats.first_planned_at is None:
            stats.first_planned_at = now
            stats.num_cached_tokens = num_cached
        else:
            stats.num_recached_tokens += num_cached
        self.stats.num_cached_tokens += num_cached
        return NewSlot(
            slot=sequence.slot,
            request_id=sequence.request_id,
            tokens=sequence.tokens[:],
            num_prompt=sequence.num_prompt,
            tables=tuple(map(tuple, sequence.tables)),
            sampling=sequence.request.sampling,
            lora=sequence.request.lora,
            stop_ids=tuple(sorted(sequence.stop_ids)),
        )

    def _vacate(self, sequence: Sequence, now: float, forget: bool = False) -> None:
        """Take back all that a running sequence has; it is out of `running` or will be."""
        self.kv.release(sequence, forget)
        self.slots[sequence.slot] = None
        self.free_slots.append(sequence.slot)
        self.freed_slots.append(sequence.slot)
        for flight in self.flights:
            flight.strike(sequence)
        for limiter in self.limiters:
            limiter.leave(sequence)
        sequence.catching_up = False  # leads nobody any further
        self._lead_on(sequence, now)

    def _end(
        self,
        sequence: Sequence,
        outcome: Outcome,
        now: float,
        *,
        position: int | None = None,
        payload: object | None = None,
        message: str | None = None,
    ) -> TokenEvent:
        """The last event of a request; whoever calls has seen to the list it stood in."""
        assert outcome.reason is not None
        if sequence.status is Status.RUNNING:
            self._vacate(sequence, now, forget=outcome.reason == "error")
        elif sequence.status is Status.WAITING:
            self.hold_clock.advance(now)
            self.hold_clock.since(sequence.hold_reading, sequence.stats.held_seconds)
        else:
            _count_following(sequence, now)
        sequence.status = Status.FINISHED
        del self.sequences[sequence.request_id]
        num_output = len(sequence.tokens) - sequence.num_prompt
        stats = sequence.stats
        stats.finished_at = now
        stats.num_output_tokens = num_output
        num_given = num_output - len(sequence.request.emitted)
        stats.num_decode_steps = num_given - stats.num_accepted_drafts - stats.num_prefills
        self.stats.add_finish(outcome.reason)
        return TokenEvent(
            sequence.request_id,
            num_output if position is None else position,
            outcome.tokens,
            outcome.reason,
            outcome.stop_token,
            message,
            payload,
            stats,
        )


def _count_following(sequence: Sequence, now: float) -> None:
    """Add the time for which a held sequence has followed another."""
    held_seconds = sequence.stats.held_seconds
    following = max(0.0, now - sequence.held_since)
    held_seconds[why.PREFIX] = held_seconds.get(why.PREFIX, 0.0) + following


def order_of(sequence: Sequence) -> tuple[float, float, int]:
    """A sequence's place among all that live."""
    return sequence.order
