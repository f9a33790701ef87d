"""Who computes what in the next step, and what its result changes.

Four verbs: add, abort, schedule, apply. `schedule` goes through the running sequences, first in
order first, then through the waiting ones, and lets each compute what it lacks: need, clipped by
every limiter, grown into blocks, committed. When blocks run out, the last running sequence gives
up its own, until the present one fits or is itself the last.

Why everything finishes. Sequences have one total order that never changes (queue.py). Victims
are taken from its end, so the first of all that live is never preempted once it runs. It fits,
since `add` refuses what would not fit alone; so it advances in every step, and finishes; then
another is the first. While it waits, those that run finish by the same argument.

The hardest invariant ties plans to results. A `InFlight` remembers whose chunks a plan carries.
Whatever ends a sequence's claim to a chunk (abort, finish, failure, preemption) strikes it from
every flight at once, so `apply` never has to ask whether a result is late: a struck chunk's
token belongs to nobody.
"""

from __future__ import annotations

from bisect import bisect_left

from octavo.core import stats as why
from octavo.core.admit import Door
from octavo.core.block_pool import BlockPool
from octavo.core.config import CoreConfig
from octavo.core.lifecycle import Roster, order_of
from octavo.core.limits import Limiter
from octavo.core.outcome import Answer, Outcome, gain
from octavo.core.plan import StepPlan, StepResult
from octavo.core.plan_draft import InFlight, PlanDraft
from octavo.core.queue import Policy
from octavo.core.request import FinishReason, Request, TokenEvent
from octavo.core.sequence import Sequence, Status
from octavo.core.stats import PrefillChunk, StepStats

# Waiting sequences looked at behind one that waits for a reason of its own. A bound, so that a
# step's cost does not grow with the queue; 64 such in a row leave little else to be done.
MAX_PASSED_OVER = 64

# Sequences that may overtake the head of the queue while it waits for a reason of its own. Then
# nobody passes it any more, so what it waits for is given back in the end: without a bound, a
# stream of requests for one adapter would keep a request for another waiting for ever.
MAX_OVERTAKEN = 64

# Waiting sequences set aside in one step to follow others. A bound for the same reason: when
# 10,000 arrive at once with one prefix, hashing all their prompts takes half a second.
MAX_FOLLOWING = 64

# Known tokens of the sequences that one step admits or sets aside. The same bound for long prompts:
# each is hashed, and copied for the workers, at 3 ms for 32k tokens. One is always looked at.
MAX_TOKENS_LOOKED_AT = 262_144


class Scheduler(Roster):
    """Every decision about the sequences of the roster."""

    def __init__(self, config: CoreConfig, cache_key: bytes, pool: BlockPool | None = None) -> None:
        super().__init__(config, cache_key, pool)
        self.policy = Policy(config)
        self.paused = False
        self._next_step = 0
        self._spare_blocks = int(config.watermark * config.num_blocks)
        self._owed_blocks = 0  # what those that catch up still lack, while others are admitted
        # Hooks that a limiter does not override are not called for every running sequence.
        # The first of each two are those for sequences that decode, the others for all.
        steady = [each for each in self.limiters if not each.of_prompts]
        both = (steady, self.limiters)
        self._clips = [[each.clip for each in some if _overrides(each, "clip")] for some in both]
        self._commits = [
            [each.commit for each in some if _overrides(each, "commit")] for some in both
        ]
        self._door = Door(config, self.kv, self.queue, self.limiters)

    # add and abort

    def add(self, request: Request, now: float) -> TokenEvent | None:
        """Let a request wait for its turn; an event only if it is turned away.

        Ids are the caller's to keep apart: an event under an id in use would seem to end the
        request that lives.
        """
        if request.request_id in self.sequences:
            raise ValueError(f"request id {request.request_id!r} is in use")
        longest = self.config.max_model_len + request.sampling.is_about_prompt
        max_total = min(request.max_total, longest)
        refusal = self._door.refusal(request, max_total)
        if refusal is not None:
            return self._turn_away(request, "refused", refusal)
        overload = self._door.overload(request)
        if overload is not None:
            return self._turn_away(request, "overloaded", overload)
        sequence = Sequence(request, self.policy.order(request), max_total, now)
        self.sequences[request.request_id] = sequence
        self._wait(sequence, now)
        return None

    def _turn_away(self, request: Request, reason: FinishReason, message: str) -> TokenEvent:
        self.stats.add_finish(reason)
        position = len(request.emitted)
        return TokenEvent(request.request_id, position, (), reason, message=message)

    def abort(self, request_id: str, now: float) -> TokenEvent | None:
        """End a request at once, whatever it is doing; None if it does not live."""
        sequence = self.sequences.get(request_id)
        if sequence is None:
            return None
        if sequence.status is Status.RUNNING:
            self.running.remove(sequence)
        else:
            self.queue.remove(sequence)
        return self._end(sequence, Outcome((), "abort"), now)

    def reset_prefix_cache(self) -> None:
        """Share nothing computed before now; what runs goes on with what it has."""
        self.kv.reset_cache()

    def pause(self, now: float) -> None:
        """Plan nothing more until `resume`; what is in flight is still applied."""
        self.hold_clock.advance(now)
        self.hold_clock.reason = why.PAUSED
        self.paused = True

    def resume(self, now: float) -> None:
        """Go on after `pause`; nobody need have called `schedule` between the two."""
        if self.paused:
            self.hold_clock.advance(now)
            self.hold_clock.reason = why.TURN
            self.paused = False

    # schedule

    def schedule(self, now: float) -> StepPlan | None:
        """The next step's plan; None if there is nothing to do or to tell."""
        self.hold_clock.advance(now)
        draft = PlanDraft()
        if self.paused:
            self.hold_clock.reason = why.PAUSED
        else:
            for limiter in self.limiters:
                limiter.begin()
            self._make_way(draft, now)
            num_first = self._num_before_the_urgent()
            if num_first < len(self.running):
                less_urgent = self.running[num_first:]
                self._continue_running(self.running[:num_first], draft, now)
                self._admit_waiting(draft, now, less_urgent[0])
                self._continue_running(less_urgent, draft, now)
            else:
                self._continue_running(self.running, draft, now)
            held_by = self._admit_waiting(draft, now)
            self.hold_clock.reason = held_by or why.TURN
        if not draft.sequences and not self.freed_slots:
            return None
        return self._send_off(draft, now)

    def _make_way(self, draft: PlanDraft, now: float) -> None:
        """Preempt running sequences for more urgent ones that wait, if the policy says so."""
        while self.queue and self.running:
            head = self.queue.peek(0)
            if not self.policy.may_displace(head, self.running[-1]):
                return
            if not all(limiter.admits(head) for limiter in self.limiters):
                return
            prefix = self.kv.match(head, self._parent(head))
            if prefix.source is not None and prefix.source.order < head.order:
                return
            if self.kv.fits(head, prefix, self._spare_blocks):
                if self.free_slots:
                    return
            elif head.num_free_needed > self.kv.pool.num_free + self._num_displaceable(head):
                return  # it would not fit even then
            self._preempt(self.running[-1], draft, now)

    def _num_before_the_urgent(self) -> int:
        """How many of the running come before the waiting that are more urgent than the last.

        Those behind may not use the step's tokens up before the urgent have had theirs.
        """
        num_running = len(self.running)
        if self.queue and self.running:
            head = self.queue.peek(0)
            if self.policy.may_displace(head, self.running[-1]):
                return bisect_left(self.running, head.order, key=order_of)
        return num_running

    def _num_displaceable(self, head: Sequence) -> int:
        """At most so many blocks come free if everybody goes whose place `head` may take."""
        return sum(
            len(table)
            for running in self.running
            if self.policy.may_displace(head, running)
            for table in running.tables
        )

    def _continue_running(self, sequences: list[Sequence], draft: PlanDraft, now: float) -> None:
        """Plan what these running sequences lack; victims leave at the end of the running."""
        all_clips, all_commits = self._clips, self._commits
        for sequence in sequences:
            catching_up = sequence.catching_up
            expected = sequence.num_expected
            if expected >= sequence.max_total:
                continue  # its last token is on the way
            if sequence.slot < 0:
                continue  # it gave way to one before it
            start = sequence.num_planned
            count = expected + len(sequence.drafts) - start
            for clip in all_clips[catching_up]:
                count = clip(sequence, count)
            if count > 0 and start + count > sequence.num_capacity:
                count = self._make_room(sequence, count, draft, now)
            if count <= 0:
                continue
            draft.add_chunk(sequence, count)
            for commit in all_commits[catching_up]:
                commit(sequence, count)

    def _make_room(self, sequence: Sequence, count: int, draft: PlanDraft, now: float) -> int:
        """Grow a running sequence's tables: for how many tokens; 0 if it must stand back.

        Guesses are not worth a preemption: they are given up before anybody else's KV is.
        """
        while True:
            added = self.kv.grow(sequence, sequence.num_planned + count)
            if added is not None:
                if added:
                    draft.new_blocks.append((sequence.slot, added))
                return count
            if sequence.drafts:
                # A limiter may have cut into the guesses already: what is known is all that counts.
                sequence.drafts = ()
                count = min(count, sequence.num_expected - sequence.num_planned)
                continue
            victim = self.running[-1]
            if victim is self.running[0]:
                return 0  # alone, it fits once its own steps in flight are back
            self._preempt(victim, draft, now)
            if victim is sequence:
                return 0

    def _preempt(self, victim: Sequence, draft: PlanDraft, now: float) -> None:
        """Take a running sequence's slot and blocks; it will compute its KV again."""
        assert self.running[-1] is victim, f"{victim.request_id} is not the last to run"
        self.running.pop()
        victim.stats.num_preemptions += 1
        victim.stats.num_lost_tokens += victim.num_computed
        self.stats.num_preemptions += 1
        draft.num_preempted += 1
        self._vacate(victim, now)
        victim.rewind()
        self._wait(victim, now)

    def _admit_waiting(
        self, draft: PlanDraft, now: float, before: Sequence | None = None
    ) -> str | None:
        """Let waiting sequences begin: what holds the first that cannot, None if none is left.

        With `before`, only those that come before that running sequence.
        """
        if not self.queue:
            return None
        if not self.free_slots:
            return why.SLOTS
        held_by: str | None = None
        index = 0
        ahead = self.running
        if before is not None:
            ahead = [each for each in ahead if each.order < before.order]
        self._owed_blocks = sum([self.kv.owed(each) for each in ahead if each.catching_up])
        most_held = len(self.queue.held) + MAX_FOLLOWING
        num_tokens = 0
        while index < len(self.queue) and len(self.queue.held) < most_held:
            if before is not None and self.queue.peek(index).order > before.order:
                break
            if not self.free_slots:
                return held_by or why.SLOTS
            if num_tokens >= MAX_TOKENS_LOOKED_AT:
                return held_by or why.TURN
            num_tokens += len(self.queue.peek(index).tokens)
            reason, may_be_passed = self._try_admit(index, draft, now)
            if reason is None:
                if index:
                    self.queue.peek(0).num_overtaken += 1
                continue
            held_by = held_by or reason
            if not may_be_passed or index >= MAX_PASSED_OVER:
                break
            if self.queue.peek(0).num_overtaken >= MAX_OVERTAKEN:
                break
            index += 1
        return held_by

    def _try_admit(self, index: int, draft: PlanDraft, now: float) -> tuple[str | None, bool]:
        """Let one waiting sequence begin, or say what holds it and whether others may pass it."""
        sequence = self.queue.peek(index)
        for limiter in self.limiters:
            if not limiter.admits(sequence):
                return limiter.reason, limiter.particular
        if self.running and self.kv.pool.num_free < sequence.num_free_needed:
            return why.BLOCKS, False  # as when it was last looked at, at a price
        prefix = self.kv.match(sequence, self._parent(sequence))
        if prefix.source is not None and prefix.source.order < sequence.order:
            self.queue.hold(index)
            self._follow(sequence, prefix.source, prefix.target, now)
            return None, True
        spare = self._spare_blocks + self._owed_blocks if self.running else 0
        if not self.kv.fits(sequence, prefix, spare):
            return why.BLOCKS, False
        sequence.num_planned = prefix.num_tokens
        count = sequence.num_expected - prefix.num_tokens
        for limiter in self.limiters:
            count = limiter.clip(sequence, count)
        if count <= 0:
            sequence.num_planned = 0
            return why.BUDGET, False
        copies = self.kv.adopt(sequence, prefix, prefix.num_tokens + count)
        if copies is None:
            return why.BLOCKS, False
        self.queue.take(index)
        draft.copies.extend(copies)
        draft.opened.append(self._begin(sequence, prefix.num_tokens, now))
        draft.add_chunk(sequence, count)
        self._owed_blocks += self.kv.owed(sequence)
        for limiter in self.limiters:
            limiter.commit(sequence, count)
            limiter.enter(sequence)
        return None, True

    def _send_off(self, draft: PlanDraft, now: float) -> StepPlan:
        """Close the draft and remember whose chunks it carries."""
        plan = draft.finish(self._next_step, self.freed_slots)
        self.stats.num_drafts += sum(len(guesses) for _, guesses in plan.drafts)
        self._next_step += 1
        self.freed_slots = []
        self.flights.append(InFlight(plan, draft.sequences, now))
        num_waiting = self.queue.num_waiting
        self.stats.add_step(
            StepStats(
                step=plan.step,
                planned_at=now,
                num_chunks=len(plan.slots),
                num_tokens=plan.num_tokens,
                num_prefill_tokens=draft.num_prefill_tokens,
                num_admitted=len(plan.opened),
                num_preempted=draft.num_preempted,
                num_running=len(self.running),
                num_waiting=num_waiting,
                num_free_blocks=self.kv.pool.num_free,
                held_by=self.hold_clock.reason if num_waiting else None,
            )
        )
        return plan

    # apply

    def apply(self, result: StepResult, now: float) -> list[TokenEvent]:
        """Replace expectation by fact: what the oldest step in flight gave."""
        flight = self.flights.popleft()
        assert result.step == flight.plan.step, f"result {result.step} came out of order"
        assert len(result.tokens) == len(flight.sequences), "a result must answer every chunk"
        answer = Answer(result)
        events: list[TokenEvent] = []
        ended = False
        particular = answer.particular
        new_event = tuple.__new__
        pairs = zip(flight.sequences, result.tokens, strict=True)
        for index, (sequence, token) in enumerate(pairs):
            if sequence is None:
                continue
            tokens = sequence.tokens
            known = len(tokens)
            if (
                (particular and sequence.slot in particular)
                or sequence.catching_up
                or sequence.verifying
                or token in sequence.stop_ids
                or known + 1 >= sequence.max_total
            ):
                event = self._apply_chunk(sequence, index, flight, answer, now)
                if event is not None:
                    events.append(event)
                    ended = ended or event.finish_reason is not None
                continue
            # The steady case, one more token of a sequence that decodes, done in place: this
            # loop is most of what the core does in a busy engine.
            assert token >= 0, f"slot {sequence.slot} should have sampled a token"
            tokens.append(token)
            sequence.num_computed = known
            if known >= sequence.commit_at:
                self.kv.commit(sequence)
            position = known - sequence.num_prompt
            # TokenEvent(request_id, position, (token,)) at two thirds of its price.
            fields = (sequence.request_id, position, (token,), None, None, None, None, None)
            events.append(new_event(TokenEvent, fields))
        if ended:
            self.running = [each for each in self.running if each.status is Status.RUNNING]
        return events

    def _apply_chunk(
        self, sequence: Sequence, index: int, flight: InFlight, answer: Answer, now: float
    ) -> TokenEvent | None:
        """One chunk's result, in general."""
        plan = flight.plan
        slot = plan.slots[index]
        error = answer.errors.get(slot)
        if error is not None:
            return self._end(sequence, Outcome((), "error"), now, message=error)
        position = len(sequence.tokens) - sequence.num_prompt
        end = plan.starts[index] + plan.counts[index]
        caught_up_before = not sequence.catching_up
        if plan.samples[index]:
            outcome = gain(sequence, answer.tokens[index], answer.accepted.get(slot, 0))
        else:
            outcome = Outcome()
            sequence.num_computed = end
        if sequence.num_computed >= sequence.commit_at:
            self.kv.commit(sequence)
        if caught_up_before:
            self.stats.num_accepted_drafts += answer.accepted.get(slot, 0)
        else:
            chunk = PrefillChunk(plan.starts[index], end, flight.planned_at, now)
            sequence.stats.add_chunk(chunk)
            self._lead_on(sequence, now)
        stats = None
        if outcome.tokens and sequence.stats.first_token_at is None:
            stats = sequence.stats  # told already: its text may end before the core knows
            stats.first_token_at = now
        payload = answer.payloads.get(slot)
        if outcome.reason is not None:
            return self._end(sequence, outcome, now, position=position, payload=payload)
        self._take_drafts(sequence, answer.drafts.get(slot, ()))
        if not outcome.tokens and payload is None:
            return None
        return TokenEvent(
            sequence.request_id, position, outcome.tokens, payload=payload, stats=stats
        )

    def _take_drafts(self, sequence: Sequence, drafts: tuple[int, ...]) -> None:
        """Keep guesses at what follows the newest token, for the next plan.

        There is no such token yet while one is in flight, or while a sequence is catching up.
        """
        assert len(drafts) <= self.config.max_drafts, f"{len(drafts)} drafts are too many"
        behind = sequence.in_flight or sequence.catching_up
        assert not (drafts and behind), "drafts behind an unknown token"
        sequence.drafts = drafts[: sequence.max_total - len(sequence.tokens) - 1]


def _overrides(limiter: Limiter, hook: str) -> bool:
    """Whether a limiter does anything in a hook; those that do not are not called in the loop."""
    return getattr(type(limiter), hook) is not getattr(Limiter, hook)
