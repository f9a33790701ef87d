"""The choice of what each step computes, and the effect of each result.

Four verbs: add, abort, schedule, apply. `schedule` goes through the running sequences in order,
then through the waiting ones, and lets each compute the tokens that it lacks: clip their number
by every limiter, grow the block tables, commit. When blocks run out, the last running sequence is
preempted, until the present one fits or is itself the last.

Why every request finishes. With one owner of requests, sequences have one total order that never
changes (queue.py). Victims are taken from its end, so the first of all living sequences is never
preempted once it runs. It fits, since `add` refuses a request that would not fit alone; so it
advances in every step, and finishes; then another is the first. While it waits, the running ones
finish by the same argument.

With several owners, running sequences are sorted by rank, level and that order (see
admission/share.py). The first of them has level 0, and every victim is behind it, so it advances
in every step. It can cease to be the first in four ways. It finishes. A sequence of a better rank,
or a more urgent one of its owner, starts; there are finitely many. A sequence of level 0 that
precedes it in the order starts; there are finitely many of those too, since the order never
changes. Or its turn ends, but not before it has got `share_quantum` more tokens, which it keeps.
So between two such ends only finitely many steps pass, and with each of them fewer tokens remain:
if no more requests came, all would finish. A waiting owner gets its turn, because the owner that
was served least is next, and what an owner was served only grows.

The hardest invariant ties results to plans. An `InFlight` remembers the sequence of each chunk.
Whatever ends a sequence's claim to a chunk (abort, finish, failure, preemption) drops it from
every plan in flight at once, so `apply` never has to ask whether a result is late: the result of
a dropped chunk is ignored.
"""

from __future__ import annotations

from collections import deque

from octavo.core.admission.share import FairShare
from octavo.core.admission.start import StartRules
from octavo.core.admit import AdmissionRules
from octavo.core.apply import ResultRules
from octavo.core.config import CoreConfig
from octavo.core.kv.branches import BranchBlocks
from octavo.core.kv.manager import KVManager
from octavo.core.kv.policies import Pool
from octavo.core.kv.transfers import KVIndex
from octavo.core.lifecycle import NO_DEADLINE, Lifecycle
from octavo.core.limits import StageShare, StepTime, limiters_for, overrides
from octavo.core.pace.ahead_counts import AheadCounts
from octavo.core.pace.comparison import Comparison
from octavo.core.pace.draft_counts import DraftCounts
from octavo.core.pace.learner import Learner
from octavo.core.plan import StepPlan
from octavo.core.plan_draft import InFlight, PlanDraft
from octavo.core.queue import Policy, WaitingQueue
from octavo.core.request import FinishReason, Ready, Request, TokenEvent
from octavo.core.sequence import Sequence
from octavo.core.stats import BLOCKS, PAUSED, SLOTS, TURN, EngineStats, StepStats
from octavo.core.steady.next_plan import NewBlocks, SteadyDecode


class Scheduler:
    """One engine's scheduler: it decides; its `lifecycle` moves the sequences."""

    def __init__(
        self,
        config: CoreConfig,
        cache_key: bytes,
        pool: Pool | None = None,
        index: KVIndex | None = None,
    ) -> None:
        self.config = config
        self.kv = KVManager(config, cache_key, pool, index)
        stats = EngineStats()
        self.limiters = limiters_for(config, stats)
        self.lifecycle = Lifecycle(config, self.kv, self.limiters, stats)
        # What the lifecycle holds, for readers.
        self.stats: EngineStats = stats
        self.sequences: dict[str, Sequence] = self.lifecycle.sequences
        self.queue: WaitingQueue = self.lifecycle.queue
        self.running: list[Sequence] = self.lifecycle.running
        self.in_flight: deque[InFlight] = self.lifecycle.in_flight
        self._steady = SteadyDecode(config, self.kv, self.lifecycle)
        self.paused = False
        self._forgets = False  # the prefix cache was emptied since the last plan
        self._policy = Policy(config)
        pace = next((each for each in self.limiters if isinstance(each, StepTime)), None)
        learner = Learner(stats, config.block_size) if pace is None else pace.learner
        comparison = Comparison(learner)
        self._drafts = DraftCounts(config, comparison)
        self._branches = BranchBlocks(config, self.kv) if config.max_branches else None
        self.ahead = AheadCounts(config, self.kv, comparison) if config.max_ahead else None
        if pace is not None:
            pace.ahead = self.ahead
        stages = next((each for each in self.limiters if isinstance(each, StageShare)), None)
        self._has_stages = stages is not None
        self._fair = FairShare(config, self.kv, self.lifecycle, self._policy, pace, stages)
        self._admission = AdmissionRules(config, self.kv, self.queue, self.limiters)
        rules = ResultRules(config, self.kv, self.lifecycle, self._steady, comparison, self.ahead)
        self.apply = rules.apply
        self._next_step = 0
        self._blocked_by = TURN  # what the queue's head waits for
        # Hooks that a limiter does not override are not called. The first list of each pair is for
        # sequences that decode, the second for those that catch up.
        decoding = [each for each in self.limiters if not each.prefill_only]
        pair = (decoding, self.limiters)
        self._clips = [[each.clip for each in some if overrides(each, "clip")] for some in pair]
        self._commits = [
            [each.commit for each in some if overrides(each, "commit")] for some in pair
        ]
        self._begins = [each.begin for each in self.limiters if overrides(each, "begin")]
        self._starts = StartRules(config, self.kv, self.lifecycle, self.limiters, self._fair)

    # add and abort

    def add(self, request: Request, now: float) -> TokenEvent | None:
        """Put a request into the queue; return an event only if it is rejected.

        Raise ValueError if the id is in use: an event would seem to end the living request.
        """
        if request.request_id in self.sequences:
            raise ValueError(f"request id {request.request_id!r} is in use")
        longest = self.config.max_model_len + request.sampling.is_about_prompt
        max_total = min(request.max_total, longest)
        refusal = self._admission.refusal(request, max_total)
        if refusal is not None:
            return self._reject(request, "refused", refusal)
        overload = self._admission.overload(request)
        if overload is not None:
            return self._reject(request, "overloaded", overload)
        line = self.queue.line_of(request)
        sequence = Sequence(request, self._policy.order(request), max_total, now, line)
        sequence.may_draft = self._may_draft(request)
        self.lifecycle.add(sequence, now)
        return None

    def _may_draft(self, request: Request) -> bool:
        """Return whether the workers may send drafts for a request."""
        has_source = self.config.proposes or bool(request.prediction)
        sampling = request.sampling
        is_drawn = sampling.speculation and not sampling.is_about_prompt
        # A token that changes what the next one is drawn by comes before any draft of that one.
        may_precede = is_drawn and not sampling.has_state
        return bool(self.config.max_drafts) and has_source and may_precede

    def _reject(self, request: Request, reason: FinishReason, message: str) -> TokenEvent:
        self.stats.add_finish(reason)
        position = len(request.emitted)
        return TokenEvent(request.request_id, position, (), reason, message=message)

    def abort(self, request_id: str, now: float) -> TokenEvent | None:
        """End a request at once, in whatever state it is; return None if it is unknown."""
        sequence = self.sequences.get(request_id)
        return None if sequence is None else self.lifecycle.abort(sequence, now)

    def ready(self, event: Ready, now: float) -> TokenEvent | None:
        """Hold a request no longer for a reason, or end it with an error; others are no error."""
        sequence = self.sequences.get(event.request_id)
        if sequence is None or sequence.hold is None or event.reason not in sequence.hold.reasons:
            return None
        if event.error is not None:
            return self.lifecycle.fail_held(
                sequence, event.error, now, is_impossible=event.is_impossible
            )
        self.lifecycle.satisfy(sequence, event.reason, now)
        return None

    def expire_holds(self, now: float) -> list[TokenEvent]:
        """End the holds whose deadline has passed; return the last events of those that fail."""
        return self.lifecycle.expire_holds(now) if self.queue.held else []

    def seconds_to_deadline(self, now: float) -> float:
        """Return for how long `expire_holds` has nothing to do; infinity if nothing is held."""
        return self.lifecycle.seconds_to_deadline(now) if self.queue.held else NO_DEADLINE

    def reset_prefix_cache(self) -> None:
        """Share nothing computed before now; running sequences keep the KV they have."""
        self.kv.reset_cache()
        self._steady.forget()  # the next plan announces it
        self._forgets = True

    def pause(self, now: float) -> None:
        """Plan nothing more until `resume`; results of steps in flight are still applied."""
        self._wait_for(PAUSED, now)
        self.paused = True

    def resume(self, now: float) -> None:
        """Plan again after `pause`."""
        if self.paused:
            self._wait_for(TURN, now)
            self.paused = False

    def _wait_for(self, reason: str, now: float) -> None:
        self._blocked_by = self.queue.reason = reason
        for line in self.queue.lines.values():
            line.clock.change_reason(reason, now)

    # schedule

    def schedule(self, now: float) -> StepPlan | None:
        """Return the next step's plan; None if there is nothing to compute or to announce.

        Drafts follow a known token. So nothing is planned behind a step in flight where drafts of
        what it draws are worth more than to keep the workers busy.
        """
        self.lifecycle.clock.advance(now)
        if self.lifecycle.num_drafting and self.in_flight and self._awaits_drafts():
            return None
        draft = None
        if not self.paused and self._steady.continues() and not self._may_propose():
            growing = self._steady.growing.pop(self._next_step, None)
            if growing is None:
                return self._launch_next(now, [])
            draft = PlanDraft()
            if self._grow_all(growing, draft, now):
                return self._launch_next(now, draft.new_blocks)
        return self._plan(draft or PlanDraft(), now)

    @property
    def _is_usual(self) -> bool:
        """True if a plan that is made now has as many before it as plans without drafts have."""
        return bool(self.in_flight) or self.config.pipeline_depth == 1

    def _awaits_drafts(self) -> bool:
        """Return whether the next step may have drafts of what the steps in flight draw."""
        last = self.in_flight[-1].plan
        if self._has_stages or last.drafts or last.ahead:
            return True
        offers = self.lifecycle.offers
        if offers and not self._drafts.pay(offers, self.running, self._next_step):
            offers.clear()
        return bool(offers) or self._may_propose()

    def _may_propose(self) -> bool:
        """Return whether a second model proposes something in the next step."""
        ahead, step = self.ahead, self._next_step
        return ahead is not None and ahead.is_due(step) and ahead.pays(self.running, step)

    def _plan(self, draft: PlanDraft, now: float) -> StepPlan | None:
        """Decide for each sequence what it computes in the next step."""
        if not self.paused:
            for begin in self._begins:
                begin(draft, now)
            self._blocked_by = self._fill(draft, now) or TURN
            if self.queue:
                self._note_reasons(now)
        if not draft.sequences and not self.lifecycle.freed_slots and not self.awaits_transfers:
            return None
        return self._launch(draft, now)

    def _grow_all(self, sequences: list[Sequence], draft: PlanDraft, now: float) -> bool:
        """Give running sequences room for a token each; return whether all have, and still run."""
        for sequence in sequences:
            if not self._grow(sequence, 1, draft, now) or draft.preempted:
                self._steady.forget()
                return False
        self._steady.has_grown(self._next_step, sequences)
        return True

    @property
    def awaits_transfers(self) -> bool:
        """True if a plan is needed for transfers alone: to begin some, or to hear of their end."""
        transfers = self.kv.transfers
        if transfers is None:
            return False
        is_quiet = bool(transfers.loading) and not self.in_flight
        return is_quiet or transfers.are_due

    def _note_reasons(self, now: float) -> None:
        """Note in each line of the queue why its head waits."""
        for line, reason in self._fair.reasons_to_wait(self._blocked_by):
            if reason != line.clock.reason:
                line.clock.change_reason(reason, now)

    def _fill(self, draft: PlanDraft, now: float) -> str | None:
        """Plan chunks of running and waiting sequences; return what the queue's head waits for."""
        if self.lifecycle.num_drafting:
            could_start = bool(self.queue and self.lifecycle.free_slots)
            self._drafts.limit(self.running, self._next_step, could_start=could_start)
        self._fair.begin()
        if self._starts.give_turn(draft, now):
            self._fair.begin()
        num_first = self._fair.num_before_urgent()
        if num_first < len(self.running):
            less_urgent = self.running[num_first:]
            self._continue_running(self.running[:num_first], draft, now)
            self._starts.admit_waiting(draft, now, less_urgent[0].place)
            self._continue_running(less_urgent, draft, now)
        else:
            self._continue_running(self.running, draft, now)
        return self._starts.admit_waiting(draft, now)

    def _continue_running(self, sequences: list[Sequence], draft: PlanDraft, now: float) -> None:
        """Plan what these running sequences lack; victims leave at the end of `running`."""
        all_clips, all_commits = self._clips, self._commits
        for sequence in sequences:
            catching_up = sequence.catching_up
            expected = sequence.num_expected
            if expected >= sequence.max_total:
                continue  # its last token is being sampled
            if sequence.slot < 0:
                continue  # it was preempted for one before it
            start = sequence.num_planned
            count = expected + len(sequence.drafts) - start
            for clip in all_clips[catching_up]:
                count = clip(sequence, count)
            if count > 0 and start + count > sequence.num_capacity:
                count = self._grow(sequence, count, draft, now)
            if count <= 0:
                continue
            draft.add_chunk(sequence, count)
            for commit in all_commits[catching_up]:
                commit(sequence, count)

    def _grow(self, sequence: Sequence, count: int, draft: PlanDraft, now: float) -> int:
        """Grow a running sequence's tables, preempting others if blocks run out.

        Return for how many tokens they have room: 0 if it must wait, or was preempted itself.
        Drafts are given up before anything is preempted for them.
        """
        while True:
            added = self.kv.grow(sequence, sequence.num_planned + count)
            if added is not None:
                if added:
                    draft.new_blocks.append((sequence.slot, added))
                return count
            if sequence.drafts:
                # A limiter may have cut into the drafts already: count known tokens only.
                sequence.keep_drafts(0)
                count = min(count, sequence.num_expected - sequence.num_planned)
                continue
            if self.running[-1] is self.running[0]:
                # Alone, it fits once its own steps in flight have returned, unless pages of the
                # pool are fragmented: then it starts again without sharing any (page_pool.py).
                is_loading = self.kv.transfers is not None and self.kv.transfers.loading
                if self.kv.pool.can_fragment and not sequence.in_flight and not is_loading:
                    sequence.is_exclusive = True
                    self._starts.preempt(sequence, BLOCKS, draft, now)
                return 0
            victim = self.running[-1]
            self._starts.preempt(victim, BLOCKS, draft, now)
            if victim is sequence:
                return 0

    def _launch(self, draft: PlanDraft, now: float) -> StepPlan:
        """Make the plan, and remember the sequences of its chunks until its result arrives."""
        transfers = self.kv.transfers
        loads, saves = ((), ()) if transfers is None else transfers.take()
        if self._branches is not None:
            self._branches.take(draft)
        if self.ahead is not None:
            self.ahead.choose(draft, self._next_step)
        if self._branches is not None:
            self._branches.give_back()
        freed = self.lifecycle.take_freed_slots()
        plan = draft.finish(self._next_step, freed, loads, saves, forgets=self._forgets)
        self._forgets = False
        if plan.drafts:
            self.stats.num_drafts += sum([len(drafts) for _, drafts in plan.drafts])
            self.stats.num_drafts += plan.num_branched
            self.stats.num_chunks_with_drafts += len(plan.drafts)
        self._next_step += 1
        self._steady.remember(plan, draft)
        predicted, is_usual = draft.predicted_seconds, self._is_usual
        self.in_flight.append(InFlight(plan, draft.sequences, now, predicted, is_usual=is_usual))
        self.stats.num_deferred_tokens += draft.num_deferred_tokens
        num_waiting = self.queue.num_waiting
        self.stats.add_step(
            StepStats(
                step=plan.step,
                planned_at=now,
                num_chunks=len(plan.slots),
                num_tokens=plan.num_tokens,
                num_prefill_tokens=draft.num_prefill_tokens,
                num_admitted=len(plan.opened),
                num_preempted=len(draft.preempted),
                num_running=len(self.running),
                num_waiting=num_waiting,
                num_free_blocks=self.kv.pool.num_free,
                blocked_by=self._blocked_by if num_waiting else None,
                num_read=sum(plan.starts) - draft.prefill_starts,
                num_prefill_pairs=draft.num_prefill_pairs,
                num_pooled_tokens=draft.num_pooled_tokens,
                predicted_seconds=draft.predicted_seconds,
            )
        )
        return plan

    def _launch_next(self, now: float, new_blocks: NewBlocks) -> StepPlan:
        """Make the plan that continues the last one, as `_launch` would."""
        steady, running, step = self._steady, self.running, self._next_step
        plan = steady.next_plan(step, new_blocks)
        self._next_step = step + 1
        is_usual = self._is_usual
        self.in_flight.append(InFlight(plan, [*running], now, 0.0, steady.stop_ids, is_usual))
        queue = self.queue
        num_running, num_waiting = len(running), queue.num_ready + len(queue.held)
        self._blocked_by = TURN
        if queue.num_ready:
            self._blocked_by = SLOTS
            self._note_reasons(now)
        # The same as StepStats(…), a third faster.
        fields = (
            *(step, now, num_running, num_running, 0, 0, 0, num_running, num_waiting),
            *(self.kv.pool.num_free, self._blocked_by if num_waiting else None),
            *(steady.num_read, 0, 0, 0.0),
        )
        self.stats.add_step(tuple.__new__(StepStats, fields))
        return plan
