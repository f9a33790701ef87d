"""Which waiting sequences a step starts, and which running ones are preempted for them.

A waiting sequence starts if there is a slot, blocks for all its known tokens, and a token in this
step. If slots or blocks lack, running sequences are preempted for it as far as shares (share.py)
and priorities (queue.py) allow; but none at all if the sequence could not start even then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Series

from octavo.core.admission.share import FairShare, Turns
from octavo.core.config import CoreConfig
from octavo.core.kv.manager import KVManager, Prefix
from octavo.core.lifecycle import Lifecycle, place_of
from octavo.core.limits import Limiter, overrides
from octavo.core.plan_draft import PlanDraft
from octavo.core.sequence import Place, Sequence, Status
from octavo.core.stats import BLOCKS, BUDGET, SHARE, SLOTS, TURN

# Waiting sequences examined behind the head while the head waits for something that others may
# not need. A bound keeps a step's cost independent of the length of the queue.
MAX_PASSED_OVER = 64

# Sequences that may overtake the head of the queue in all. Without a bound, a stream of requests
# for one adapter would keep a request for another one waiting for ever; when it is reached, what
# the head waits for becomes free in the end.
MAX_OVERTAKEN = 64

# Waiting sequences that one step lets follow others. When 10,000 requests with one prefix arrive
# at once, hashing all their prompts takes half a second.
MAX_FOLLOWING = 64

# Known tokens of the waiting sequences that one step examines: each prompt is hashed, and copied
# for the workers, which takes 3 ms for 32k tokens. One sequence is always examined.
MAX_EXAMINED_TOKENS = 262_144


class StartRules:
    """The part of the scheduler that starts waiting sequences."""

    def __init__(
        self,
        config: CoreConfig,
        kv: KVManager,
        lifecycle: Lifecycle,
        limiters: Series[Limiter],
        fair: FairShare,
    ) -> None:
        self._kv = kv
        self._lifecycle = lifecycle
        self._fair = fair
        self._spare_pages = int(config.watermark * config.num_blocks)
        self._lacking_pages = 0  # of sequences that catch up, while others are admitted
        self._out_of_turn: Sequence | None = None  # whose owner has none running, and waits
        # Hooks that a limiter does not override are not called.
        self._clips = [each.clip for each in limiters if overrides(each, "clip")]
        self._commits = [each.commit for each in limiters if overrides(each, "commit")]
        self._enters = [each.enter for each in limiters if overrides(each, "enter")]
        self._admitting = [each for each in limiters if overrides(each, "admits")]

    def preempt(self, victim: Sequence, reason: str, draft: PlanDraft, now: float) -> None:
        draft.preempted.append(victim)
        self._lifecycle.preempt(victim, reason, now)

    def give_turn(self, draft: PlanDraft, now: float) -> bool:
        """Preempt a sequence for one whose owner has none running and has waited for a step.

        Return whether one was preempted.
        """
        head, self._out_of_turn = self._out_of_turn, None
        if head is None or head.status is not Status.WAITING or not self._lifecycle.running:
            return False
        if not head.line.num_running:  # as when another of its owner's has started meanwhile
            victim = self._fair.find_turn(head)
            if victim is not None:
                self.preempt(victim, SHARE, draft, now)
                self._out_of_turn = head
                return True
        return False

    def admit_waiting(
        self, draft: PlanDraft, now: float, before: Place | None = None
    ) -> str | None:
        """Start waiting sequences; return what the first one left waits for, None if none is left.

        With `before`, start only those that come before that place, and preempt for them running
        sequences that come after it, if shares or priorities allow it.
        """
        queue = self._lifecycle.queue
        if not queue:
            return None
        free_slots = self._lifecycle.free_slots
        if not (before or free_slots or self._fair.is_shared):
            return SLOTS
        ahead = self._lifecycle.running
        if before is not None:
            ahead = ahead[: bisect_left(ahead, before, key=place_of)]
        self._lacking_pages = sum(
            [self._kv.lacking_pages(each) for each in ahead if each.catching_up]
        )
        blocker: str | None = None
        passed: Sequence | None = None  # the first that others may overtake
        num_passed = num_tokens = 0
        most_held = len(queue.held) + MAX_FOLLOWING
        turns = Turns(self._fair, queue.lines)
        while len(queue.held) < most_held:
            sequence = turns.next()
            if sequence is None:
                break
            if before is None:
                if not free_slots:
                    self._note_out_of_turn(sequence, SLOTS)
                    return blocker or SLOTS
            elif not self._is_urgent(sequence, before, draft):
                turns.end(sequence.line)
                continue
            if num_tokens >= MAX_EXAMINED_TOKENS:
                return blocker or TURN
            num_tokens += len(sequence.tokens)
            reason, may_be_passed = self._try_admit(sequence, draft, now, before)
            if reason is None:
                if passed is not None:
                    passed.num_overtaken += 1
                continue
            blocker = blocker or reason
            if reason == SLOTS and before is not None:
                turns.end(sequence.line)  # another line's head may displace one of its own line
                continue
            if not may_be_passed:
                self._note_out_of_turn(sequence, reason)
                break
            passed = passed or sequence
            num_passed += 1
            if num_passed > MAX_PASSED_OVER or passed.num_overtaken >= MAX_OVERTAKEN:
                break
            turns.skip(sequence)
        return blocker

    def _is_urgent(self, sequence: Sequence, before: Place, draft: PlanDraft) -> bool:
        """Return whether a waiting sequence may start before the running ones from a place on.

        One that was preempted in this step has had a place among those that are planned later.
        """
        return self._fair.place_for(sequence) < before and sequence not in draft.preempted

    def _note_out_of_turn(self, sequence: Sequence, reason: str) -> None:
        """Remember the first sequence that waits, in case that its owner must be given a turn."""
        if reason in (SLOTS, BLOCKS, BUDGET) and not sequence.line.num_running:
            self._out_of_turn = sequence

    def _try_admit(
        self, sequence: Sequence, draft: PlanDraft, now: float, before: Place | None
    ) -> tuple[str | None, bool]:
        """Start one waiting sequence, or return what it waits for and whether it may be passed."""
        running = self._lifecycle.running
        for limiter in self._admitting:
            if not limiter.admits(sequence):
                return limiter.reason, limiter.may_be_passed
        if running and (sequence.is_exclusive or running[0].is_exclusive):
            return BLOCKS, False
        has_slot = bool(self._lifecycle.free_slots)
        # Known from the last time, without matching its prefix again.
        needed = sequence.num_free_needed + self._spare()
        has_blocks = not running or self._kv.pool.num_free >= needed
        if not (has_slot and has_blocks):
            num_waiting = len(sequence.line.waiting)
            if not self._make_room(sequence, draft, now, before):
                return BLOCKS if has_slot else SLOTS, False
            if len(sequence.line.waiting) != num_waiting:
                return None, True  # one of its line may be before it, which followed a victim
        prefix = self._match(sequence)
        if self._follows(sequence, prefix):
            self._lifecycle.follow(sequence, prefix, now)
            return None, True
        if not self._kv.fits(sequence, prefix, self._spare()):
            if self._make_room(sequence, draft, now, before):
                prefix = self._match(sequence)
            elif running or not self._kv.pool.can_fragment:
                return BLOCKS, False
            else:
                prefix = self._kv.empty_prefix()  # it may need fewer pages than with a shared part
        if self._kv.transfers is not None and self._fetch(sequence, prefix, now):
            return None, True
        count = self._first_count(sequence, prefix)
        if count <= 0:
            return BUDGET, False
        sequence.num_planned = prefix.num_tokens
        copies = self._kv.adopt(sequence, prefix, prefix.num_tokens + count)
        if copies is None:
            return BLOCKS, False
        draft.copies.extend(copies)
        place = self._fair.place_for(sequence)
        for enter in self._enters:
            enter(sequence)
        draft.opened.append(self._lifecycle.start(sequence, place, prefix.num_tokens, now))
        sequence.line.num_pages += self._fair.pages_of(sequence)
        draft.add_chunk(sequence, count)
        self._lacking_pages += self._kv.lacking_pages(sequence)
        for commit in self._commits:
            commit(sequence, count)
        return None, True

    def _follows(self, sequence: Sequence, prefix: Prefix) -> bool:
        """Return whether a waiting sequence waits for a prefix that one before it computes."""
        source = prefix.source
        return source is not None and source.place < self._fair.place_for(sequence)

    def _spare(self) -> int:
        """Return how many pages an admission must leave free."""
        return self._spare_pages + self._lacking_pages if self._lifecycle.running else 0

    def _first_count(self, sequence: Sequence, prefix: Prefix) -> int:
        """Return how many tokens a waiting sequence could be given in this step."""
        sequence.num_planned = prefix.num_tokens
        count = sequence.num_expected - prefix.num_tokens
        for clip in self._clips:
            count = clip(sequence, count)
        sequence.num_planned = 0
        return count

    def _make_room(
        self, sequence: Sequence, draft: PlanDraft, now: float, before: Place | None
    ) -> bool:
        """Preempt running sequences for a waiting one; return False if there is no room for it.

        None is preempted if all of them would not suffice.
        """
        if before is None:
            return False
        victims = self._fair.displaceable(sequence, before)
        prefix = self._match(sequence)
        if not victims or self._follows(sequence, prefix):
            return False
        if self._first_count(sequence, prefix) <= 0:
            return False
        if not self._kv.fits(sequence, prefix, self._spare()):
            pool, holders = self._kv.pool, [victim.tables for victim, _ in victims]
            num_free = pool.num_free + pool.pages_freed_by(holders, prefix.tables)
            if sequence.num_free_needed + self._spare() > num_free:
                return False
        while victims and not self._has_room(sequence):
            self.preempt(*victims.pop(0), draft, now)
        return True

    def _has_room(self, sequence: Sequence) -> bool:
        """Return whether there is a slot for a waiting sequence, and blocks for all its tokens."""
        has_slot = bool(self._lifecycle.free_slots)
        return has_slot and self._kv.fits(sequence, self._match(sequence), self._spare())

    def _fetch(self, sequence: Sequence, prefix: Prefix, now: float) -> bool:
        """Hold a sequence if other places have more of its prefix; return whether they have."""
        transfers = self._kv.transfers
        assert transfers is not None
        if sequence.has_fetched or sequence.is_exclusive:
            return False
        contents = self._kv.find_elsewhere(sequence, prefix.num_tokens)
        num_loads = transfers.fetch(sequence, contents, len(self._kv.groups)) if contents else 0
        if num_loads:
            self._lifecycle.fetch(sequence, num_loads, now)
        return num_loads > 0

    def _match(self, sequence: Sequence) -> Prefix:
        """Return what exists already of a waiting sequence's KV."""
        if sequence.request.parent_id is None:
            return self._kv.match(sequence)
        parent = self._lifecycle.sequences.get(sequence.request.parent_id)
        is_settled = not any(parent in step.sequences for step in self._lifecycle.in_flight)
        return self._kv.match(sequence, parent, is_settled)
