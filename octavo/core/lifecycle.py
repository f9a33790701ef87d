"""The places of all living sequences, and every move from one place to another.

                 add              start                      finish
    (added) ───────────▶ waiting ──────────▶ running ───────────────────▶ (finished)
       │                  │  ▲ ▲               │  │
       │           follow │  │ └───────────────┘  │ releases its followers when they can
       │            fetch ▼  │      preempt       │ use its prefix, or when it leaves
       └─────────────────▶ held ◀─────────────────┘
         Request.holds

A held sequence waits for something outside the schedule: a prefix that another one computes, a
grammar or an adapter that is being loaded, KV that is being fetched. It is out of the queue, so it
delays no other, and each wait has a bound: a prefix is computed by an older sequence, which runs
and therefore finishes or leaves; every other hold has a deadline, after which the sequence goes on
without what it waited for (KV), or fails. The configuration names what has a bound of its own
(`untimed_holds`): an adapter waits until others have finished, however long their texts are.

A sequence is in exactly one of these places, and in the list that belongs to it. Only a running
sequence owns anything: a slot, blocks, chunks in flight, a share of what a limiter counts.
`_vacate` takes all of it back, so that no way out (end, abort, failure, preemption) can miss
a part.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence as Series

from octavo.core.config import CoreConfig
from octavo.core.kv.manager import KVManager, Prefix
from octavo.core.limits import Limiter, overrides
from octavo.core.outcome import Outcome, failure_reason
from octavo.core.plan import NewSlot
from octavo.core.plan_draft import InFlight
from octavo.core.queue import WaitingQueue
from octavo.core.request import TokenEvent
from octavo.core.sequence import Hold, Place, Sequence, Status
from octavo.core.stats import FETCH, PREFIX, SHARE, EngineStats, SteadyClock

NO_DEADLINE = float("inf")


class Lifecycle:
    """The living sequences of one engine, their slots, and the plans in flight."""

    def __init__(
        self, config: CoreConfig, kv: KVManager, limiters: Series[Limiter], stats: EngineStats
    ) -> None:
        self._kv = kv
        self._leaves = [each.leave for each in limiters if overrides(each, "leave")]
        self._hold_seconds = config.hold_seconds
        self._untimed = config.untimed_holds
        # No held sequence has an earlier deadline. Deadlines are readings of `clock.elapsed`.
        self.next_deadline = NO_DEADLINE
        self.stats = stats
        self.sequences: dict[str, Sequence] = {}  # all that live, by request id
        self.queue = WaitingQueue(config.fair_share)
        self.running: list[Sequence] = []  # sorted by place
        self.num_moves = 0  # how often a sequence began or ceased to run
        self.num_drafting = 0  # running sequences that may draft
        # Of the drafts of the last result that came too late, for each sequence with some: how
        # probably those are right that will come with the next one.
        self.offers: list[tuple[float, ...]] = []
        self.slots: list[Sequence | None] = [None] * config.max_num_seqs
        self.free_slots = [*range(config.max_num_seqs - 1, -1, -1)]
        self.freed_slots: list[int] = []  # to be announced to the workers in the next plan
        self.in_flight: deque[InFlight] = deque()  # oldest first
        self.clock = SteadyClock()

    # waiting

    def add(self, sequence: Sequence, now: float) -> None:
        """Add a new sequence, which waits from now on or is held."""
        self.sequences[sequence.request_id] = sequence
        sequence.line.num_living += 1
        if sequence.request.holds:
            self._enqueue_held(sequence, now)
        else:
            self._enqueue(sequence, now)

    def _enqueue(self, sequence: Sequence, now: float) -> None:
        """Put a new or preempted sequence into the queue, at the place that its order gives it."""
        self._begin_to_wait(sequence, now)
        self.queue.add(sequence)

    def _begin_to_wait(self, sequence: Sequence, now: float) -> None:
        clock = sequence.line.clock
        clock.advance(now)
        sequence.wait_reading = clock.read()

    def _cease_to_wait(self, sequence: Sequence, now: float) -> None:
        clock = sequence.line.clock
        clock.advance(now)
        clock.add_since(sequence.wait_reading, sequence.stats.wait_seconds)

    # held

    def _enqueue_held(self, sequence: Sequence, now: float) -> None:
        """Hold a new sequence until everything that its request names is ready."""
        self.queue.add_held(sequence)
        self.clock.advance(now)
        deadline = self.clock.elapsed + self._hold_seconds
        sequence.hold = Hold(sequence.request.holds, now, deadline, is_optional=False)
        self.next_deadline = min(self.next_deadline, deadline)

    def _hold(self, sequence: Sequence, reason: str, now: float, deadline: float) -> Hold:
        """Take a sequence out of the queue for a reason without which it can go on too."""
        self.queue.set_aside(sequence)
        self._cease_to_wait(sequence, now)
        sequence.hold = hold = Hold((reason,), now, deadline, is_optional=True)
        self.next_deadline = min(self.next_deadline, deadline)
        return hold

    def satisfy(self, sequence: Sequence, reason: str, now: float) -> None:
        """Hold a sequence no longer for this reason; return it to the queue after the last."""
        hold = sequence.hold
        assert hold is not None, f"{sequence.request_id} is not held"
        _count_hold(sequence, now)
        hold.reasons = tuple([each for each in hold.reasons if each != reason])
        if not hold.reasons:
            sequence.hold = None
            self.queue.put_back(sequence)
            self._begin_to_wait(sequence, now)

    def seconds_to_deadline(self, now: float) -> float:
        """Return the seconds until the first deadline of a hold, which may have ended already."""
        self.clock.advance(now)
        return self.next_deadline - self.clock.elapsed

    def expire_holds(self, now: float) -> list[TokenEvent]:
        """End the holds whose deadline has passed; return the last events of those that fail."""
        self.clock.advance(now)
        elapsed = self.clock.elapsed
        if elapsed < self.next_deadline:
            return []
        overdue = [each for each in self.queue.held.values() if self.deadline(each) <= elapsed]
        events = []
        for sequence in overdue:
            hold = sequence.hold
            assert hold is not None
            if hold.is_optional:
                self.satisfy(sequence, hold.reasons[0], now)
                continue
            late = next(reason for reason in hold.reasons if reason not in self._untimed)
            message = (
                f"the {late} that the request waits for was not ready within "
                f"{self._hold_seconds} s (hold_seconds)"
            )
            events.append(self.fail_held(sequence, message, now))
        self.next_deadline = min(map(self.deadline, self.queue.held.values()), default=NO_DEADLINE)
        return events

    def deadline(self, sequence: Sequence) -> float:
        """Return when a hold ends at the latest; NO_DEADLINE if something else bounds it."""
        hold = sequence.hold
        if hold is None or all(reason in self._untimed for reason in hold.reasons):
            return NO_DEADLINE
        return hold.deadline

    def fail_held(
        self, sequence: Sequence, message: str, now: float, *, is_impossible: bool = False
    ) -> TokenEvent:
        """End a held sequence with its own error."""
        self.queue.remove(sequence)
        outcome = Outcome((), failure_reason(is_impossible=is_impossible))
        return self.finish(sequence, outcome, now, message=message)

    def fetch(self, sequence: Sequence, num_loads: int, now: float) -> None:
        """Take a sequence out of the queue until its loads have ended, or the deadline passes."""
        deadline = self.clock.elapsed + self._hold_seconds
        self._hold(sequence, FETCH, now, deadline).num_loads = num_loads
        sequence.has_fetched = True

    def end_loads(self, loaded: Series[tuple[int, bool]], now: float) -> None:
        """Return the sequences to the queue whose last load has ended."""
        transfers = self._kv.transfers
        assert transfers is not None, "loads have ended that no plan contained"
        for number, has_succeeded in loaded:
            for sequence in transfers.end_load(number, has_succeeded):
                hold = sequence.hold
                if hold is None or hold.reasons != (FETCH,):
                    continue  # its deadline has passed, or it was aborted
                hold.num_loads -= 1
                if not hold.num_loads:
                    self.satisfy(sequence, FETCH, now)

    def follow(self, sequence: Sequence, prefix: Prefix, now: float) -> None:
        """Take a sequence out of the queue until `prefix.source` has computed what both share."""
        assert prefix.source is not None
        self._hold(sequence, PREFIX, now, NO_DEADLINE)
        prefix.source.followers.append((prefix.target, sequence))

    def release_followers(self, source: Sequence, now: float) -> None:
        """Return followers to the queue if their prefix is computed, or never will be."""
        remaining = []
        for target, follower in source.followers:
            if follower.status is not Status.HELD:
                continue  # aborted
            if source.catching_up and source.num_computed < target:
                remaining.append((target, follower))
                continue
            self.satisfy(follower, PREFIX, now)
        source.followers = remaining

    # running

    def start(self, sequence: Sequence, place: Place, num_cached: int, now: float) -> NewSlot:
        """Give an admitted sequence a slot, and return its whole state for the workers."""
        self.queue.take(sequence)
        self._cease_to_wait(sequence, now)
        sequence.status = Status.RUNNING
        sequence.slot = self.free_slots.pop()
        self.slots[sequence.slot] = sequence
        sequence.place = place
        insort(self.running, sequence, key=place_of)
        self.num_moves += 1
        self.num_drafting += sequence.may_draft
        line = sequence.line
        line.num_running += 1
        sequence.num_at_start = sequence.num_charged = len(sequence.tokens)
        sequence.num_followed = num_cached
        stats = sequence.stats
        if stats.first_planned_at is None:
            # What is computed again after a preemption is not charged to the owner.
            line.served += (sequence.num_charged - num_cached) / line.weight
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
            encodes=sequence.encodes,
            sampling=sequence.request.sampling,
            lora=sequence.request.lora,
            adapter=sequence.adapter,
            stop_ids=tuple(sorted(sequence.stop_ids)),
            may_draft=sequence.may_draft,
            prediction=sequence.request.prediction,
            cache_scope=sequence.request.cache_scope,
            sampler_state=sequence.sampler_state,
        )

    def preempt(self, victim: Sequence, reason: str, now: float) -> None:
        """Return a running sequence to the queue; it will compute its KV again."""
        self.running.remove(victim)
        victim.stats.num_preemptions += 1
        victim.stats.num_yields += reason == SHARE
        victim.stats.num_lost_tokens += victim.num_computed
        self.stats.add_preemption(reason)
        self._vacate(victim, now)
        victim.rewind()
        self._enqueue(victim, now)

    def take_freed_slots(self) -> tuple[int, ...]:
        """Return the slots that the next plan must announce as freed, each of them once."""
        freed = tuple(self.freed_slots)
        self.freed_slots = []
        return freed

    def _vacate(self, sequence: Sequence, now: float, forget: bool = False) -> None:
        """Take back everything that a running sequence owns; the caller updates `running`.

        With `forget`, the content of its blocks leaves the prefix cache too.
        """
        self._kv.release(sequence, forget)
        self.num_moves += 1
        self.num_drafting -= sequence.may_draft
        sequence.line.num_running -= 1
        charge(sequence)
        self.slots[sequence.slot] = None
        self.free_slots.append(sequence.slot)
        self.freed_slots.append(sequence.slot)
        for step in self.in_flight:
            step.drop(sequence)
        for leave in self._leaves:
            leave(sequence)
        sequence.catching_up = False  # its followers wait for nothing any more
        if sequence.followers:
            self.release_followers(sequence, now)

    # the end

    def abort(self, sequence: Sequence, now: float) -> TokenEvent:
        """End a sequence at once, in whatever place it is."""
        if sequence.status is Status.RUNNING:
            self.running.remove(sequence)
        else:
            self.queue.remove(sequence)
        return self.finish(sequence, Outcome((), "abort"), now)

    def finish(
        self,
        sequence: Sequence,
        outcome: Outcome,
        now: float,
        *,
        position: int | None = None,
        payload: object | None = None,
        message: str | None = None,
    ) -> TokenEvent:
        """End a sequence and return its last event.

        The caller removes it from `queue` or `running`: `apply` ends many sequences in one step,
        and removes all of them at once.
        """
        assert outcome.reason is not None
        if sequence.status is Status.RUNNING:
            self._vacate(sequence, now, forget=outcome.reason == "error")
        elif sequence.status is Status.WAITING:
            self._cease_to_wait(sequence, now)
        else:
            _count_hold(sequence, now)
            sequence.hold = None
        sequence.status = Status.FINISHED
        del self.sequences[sequence.request_id]
        self.queue.leave(sequence.line)
        num_output = len(sequence.tokens) - sequence.num_prompt
        stats = sequence.stats
        stats.finished_at = now
        stats.num_output_tokens = num_output
        num_sampled = num_output - len(sequence.request.emitted)
        num_stepless = stats.num_accepted_drafts + stats.num_forced_tokens
        stats.num_decode_steps = num_sampled - num_stepless - stats.num_prefills
        if 0 < len(outcome.tokens) == outcome.num_accepted:
            stats.num_decode_steps += 1  # all tokens that its last step added were drafts
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

    def remove_finished(self) -> None:
        """Remove from `running` every sequence that `finish` has ended."""
        self.running[:] = [each for each in self.running if each.status is Status.RUNNING]


def _count_hold(sequence: Sequence, now: float) -> None:
    """Add the time for which a sequence has been held to its statistics, and count anew."""
    hold, wait_seconds = sequence.hold, sequence.stats.wait_seconds
    assert hold is not None
    reason, seconds = hold.reasons[0], max(0.0, now - hold.since)
    wait_seconds[reason] = wait_seconds.get(reason, 0.0) + seconds
    hold.since = now


def charge(sequence: Sequence) -> None:
    """Add the tokens that a running sequence got since the last call to its line's account."""
    num_known, line = len(sequence.tokens), sequence.line
    line.served += (num_known - sequence.num_charged) / line.weight
    sequence.num_charged = num_known


def place_of(sequence: Sequence) -> Place:
    """Return a running sequence's place: a key for `bisect`."""
    return sequence.place
