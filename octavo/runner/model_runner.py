"""The worker that runs plans: it submits a step for each, and turns its output into a result.

Plans may be submitted while earlier steps still run. A slot may then be freed, and opened for
another request, before the results of its last steps have been collected: a step in flight
remembers the slots that it has lost, and what it says of them is dropped.

A failure of one sequence (logits that are not finite, rules that leave no token) is an error of
that sequence alone. Drafts that were accepted in that step, before the failure, are part of its
result: they are text, and may end it. The sequence stays failed until its slot is freed, since
later plans may already be in flight; what these give is dropped.

Tokens that a grammar forces follow a drawn one at once, where no other step is in flight. They are
known tokens from then on: the backend appends them to what it has drawn, before the next step.

The arrays of an output are valid until the next one. Nothing of them is kept: pooled vectors,
log-probabilities are copies, tokens are integers.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from octavo.backends.base import Backend, Floats
from octavo.backends.step import NO_TOKEN_LEFT, Pending, RowLogprobs, StepOutput
from octavo.core.config import CoreConfig
from octavo.core.plan import (
    NO_TOKEN,
    HiddenPayload,
    LogprobsPayload,
    NewSlot,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from octavo.core.sampling_params import LogitsProcessor
from octavo.core.trees.form import walked
from octavo.grammar.supply import GrammarSupply
from octavo.runner.batch import Opened, Step
from octavo.runner.batch_reuse import BatchReuse
from octavo.runner.request_processors import RequestProcessor, with_processors
from octavo.runner.shaping import MaskWork, Shaping
from octavo.runner.slots import SlotState
from octavo.runner.speculate.drafting import Drafting
from octavo.runner.speculate.proposer import Proposer

if TYPE_CHECKING:
    from octavo.runner.adapter_slots import AdapterSlots, AdapterSupply, Changes
    from octavo.runner.speculate.ahead import AheadProposer, AheadWork
    from octavo.runner.transfers import Ended, KVStore, Transfers

NO_HEAD = "the model has no layers for {!r} behind its pooling"
NO_GRAMMARS = "the text has a shape or a budget of reasoning, and this engine computes no masks"
NO_ADAPTER_LOADED = "its adapter (LoRA) is not in memory, which is a defect: please report it"
_NOTHING_ELSE = StepOutput(())[1:]
_NO_OTHER_RESULTS = StepResult(0, ())[2:]
_NONE_LOST: frozenset[int] = frozenset()
NO_TOKEN_FITS = "no token of the model goes on with a text of this shape"


class StepInFlight:
    """A plan that was submitted, until its result is collected."""

    __slots__ = ("_runner", "ahead", "loaded", "lost", "mask_work", "pending", "plan", "step")

    def __init__(
        self,
        runner: ModelRunner,
        plan: StepPlan,
        step: Step,
        pending: Pending,
        mask_work: MaskWork | None = None,
        loaded: Ended = (),
        ahead: AheadWork | None = None,
    ) -> None:
        self.plan = plan
        self.step = step
        self.pending = pending
        self.mask_work = mask_work
        self.loaded = loaded
        self.ahead = ahead  # what it asks of a second model, if there is one
        self.lost: frozenset[int] = _NONE_LOST  # its slots that have been freed since
        self._runner = runner

    def done(self) -> bool:
        """Return whether `collect` need not wait."""
        return self.pending.done()

    def collect(self) -> StepResult:
        """Wait for the step; return its result, or raise its error."""
        return self._runner.collect(self)


class ModelRunner:
    """One worker: a backend with a model and its cache, and the state of the slots."""

    def __init__(
        self,
        backend: Backend,
        vocabulary: int,
        config: CoreConfig,
        *,
        processors: Mapping[str, LogitsProcessor] | None = None,
        request_processors: Mapping[str, RequestProcessor] | None = None,
        proposer: Proposer | None = None,
        grammars: GrammarSupply | None = None,
        masks_beside: bool = True,
        heads: Mapping[str, Callable[[Floats], Floats]] | None = None,
        store: KVStore | None = None,
        adapters: AdapterSupply | None = None,
    ) -> None:
        self._backend = backend
        self._transfers = _transfers(store, backend)
        self._heads = heads or {}
        self._request_processors = request_processors or {}
        self.state = SlotState(
            config, vocabulary, processors or {}, has_adapters=adapters is not None
        )
        self._drafting: Drafting | None = None
        if config.max_drafts:
            self._drafting = Drafting(proposer, vocabulary, config, self.state)
        self._second = _second_model(proposer)
        if self._second is not None:
            self._second.attach(self.state, config)
        self._adapters = _adapter_slots(adapters)
        self._batches = BatchReuse(self.state, can_continue=backend.can_continue)
        self._shaping: Shaping | None = None
        if grammars is not None:
            self._shaping = Shaping(vocabulary, grammars, beside=masks_beside)
        self._in_flight: deque[StepInFlight] = deque()
        self._max_drafts = config.max_drafts
        self._appended: dict[int, tuple[int, ...]] = {}  # slot → forced tokens of the last step

    def submit(self, plan: StepPlan) -> StepInFlight:
        """Start a step, in the order that plan.py documents."""
        state = self.state
        if plan.freed:
            self._free(plan.freed)
        if plan.forgets and self._drafting is not None:
            self._drafting.forget()
        opened: Opened = ()
        changed: Changes = ()
        if plan.opened:
            plan, failures = with_processors(plan, self._request_processors)
            opened = self._open(plan.opened)
            if self._adapters is not None:
                changed = self._change_adapters(plan.opened, self._adapters)
            for slot, failure in failures:
                state.fail(slot, failure.message, is_impossible=failure.is_impossible)
        for slot, blocks in plan.new_blocks:
            state.grow(slot, blocks)
        if self._appended:
            self._batches.forget()
        step = self._batches.make(plan, opened)
        if changed:
            step = step._replace(batch=step.batch._replace(adapter_slots=changed))
        ahead = None
        if self._second is not None:
            self._second.take_blocks(plan)
            if self._second.is_used:
                if self._drafting is not None and plan.ahead:
                    self._drafting.read()
                step, ahead = self._second.prepare(plan, step)
        work = None
        if self._shaping is not None:
            step, work = self._with_shapes(plan, step, self._shaping)
        loaded: Ended = ()
        if self._transfers is not None:
            step, loaded = self._transfers.begin(plan, step)
        elif plan.loads or plan.saves:
            raise ValueError(f"plan {plan.step} transfers KV, and this runner has no store for it")
        pending = self._backend.step(step.batch, step.draws)
        started = StepInFlight(self, plan, step, pending, work, loaded, ahead)
        self._in_flight.append(started)
        if work is not None and self._shaping is not None:
            self._begin_masks(self._shaping)
        return started

    def _open(self, slots: Sequence[NewSlot]) -> Opened:
        """Open slots; those whose requests this runner cannot compute fail alone."""
        state = self.state
        opened = tuple([(new.slot, state.open(new)) for new in slots])
        if self._drafting is not None:
            for new in slots:
                self._drafting.open(new)
        if self._shaping is None:
            for new in slots:
                if new.sampling.grammar or new.sampling.thinking_marks is not None:
                    state.fail(new.slot, NO_GRAMMARS)
        for new in slots:
            pooling = new.sampling.pooling
            if pooling is not None and pooling.head and pooling.head not in self._heads:
                state.failures.setdefault(new.slot, NO_HEAD.format(pooling.head))
        return opened

    def _change_adapters(self, slots: Sequence[NewSlot], adapters: AdapterSlots) -> Changes:
        """Return what changes in the slots of adapters; fail sequences whose own is lost."""
        changed, lost = adapters.change(slots)
        for slot in lost:
            self.state.fail(slot, NO_ADAPTER_LOADED)
            self.state.adapters.pop(slot, None)
        return changed

    def _with_shapes(
        self, plan: StepPlan, step: Step, shaping: Shaping
    ) -> tuple[Step, MaskWork | None]:
        """Add the masks of a step, which may still be computed, and what was forced before it."""
        for new in plan.opened:
            shaping.open(new)
        num_unknown = len(self._in_flight) * (1 + self._max_drafts)
        work = shaping.work_of(step.draws, num_unknown)
        if work is not None or self._appended:
            appended, self._appended = tuple(self._appended.items()), {}
            masks = None if work is None else work.masks
            draws = step.draws._replace(masks=masks, appended=appended)
            step = step._replace(draws=draws)
        if work is not None and not self._in_flight:
            shaping.start(work)
        return step, work

    def _free(self, slots: Sequence[int]) -> None:
        for started in self._in_flight:
            started.lost = started.lost.union(slots)
        for slot in slots:
            if self._drafting is not None:
                self._drafting.free(slot)
            self.state.free(slot)
            if self._shaping is not None:
                self._shaping.free(slot)
                self._appended.pop(slot, None)

    def collect(self, started: StepInFlight) -> StepResult:
        """Wait for the oldest step in flight; return its result."""
        assert started is self._in_flight[0], "steps are collected in the order of submission"
        output = started.pending.collect()
        self._in_flight.popleft()
        if self._transfers is None:
            return self._result(started, output)
        self._transfers.end_saves(started.plan, output.saved)
        result = self._result(started, output._replace(saved=()))
        return result._replace(loaded=started.loaded) if started.loaded else result

    def _result(self, started: StepInFlight, output: StepOutput) -> StepResult:
        """Turn the output of a step into its result."""
        plan, state = started.plan, self.state
        tokens, failures, logprobs, prompts, pooled = output[:5]
        drafting = self._drafting
        if drafting is not None and not drafting.is_used:
            drafting = None
        failed_before = tuple(state.failures) if state.failures else ()
        forced: tuple[tuple[int, tuple[int, ...]], ...] = ()
        if self._shaping is not None and (self._shaping.is_used or self._in_flight):
            forced = self._continue_shapes(started, output, self._shaping)
        if failures:
            for slot, message in failures:
                if slot not in started.lost:
                    self._fail(slot, message)
        if started.step.chunks is None and started.step.draws.num_drafts is None:
            sampled = tuple([token for (token,) in tokens])
            is_plain = output[1:] == _NOTHING_ELSE and not (forced or state.failures)
            if is_plain and (drafting is None or self._keeps(started, sampled, drafting)):
                # The same as StepResult(plan.step, sampled), without another call.
                return tuple.__new__(StepResult, (plan.step, sampled, *_NO_OTHER_RESULTS))
            accepted: tuple[tuple[int, int], ...] = ()
        else:
            sampled, accepted = _sampled(started, tokens)
        result = StepResult(
            plan.step, sampled, accepted, forced=forced, ahead_seconds=output.ahead_seconds
        )
        if plan.branches:
            result = result._replace(walks=_walks(started, tokens))
        if logprobs or prompts or pooled:
            result = result._replace(payloads=_payloads(started, output, self._behind))
        if output.states:
            result = result._replace(states=output.states)
        if state.failures:
            result = self._with_errors(plan, result, failed_before)
        if self._second is not None and started.ahead is not None:
            self._second.collect(started.ahead, started.step.draws.slots, output, started.lost)
        if drafting is not None:
            sampled_slots = drafting.append(
                _slots(started), output.tokens, dict(forced), started.lost
            )
            allowed = None if self._shaping is None else self._shaping.allowed
            is_late = bool(self._in_flight)
            result = drafting.add_to(result, sampled_slots, allowed, is_late=is_late)
        return result

    def _keeps(self, started: StepInFlight, drawn: tuple[int, ...], drafting: Drafting) -> bool:
        """Return whether nothing is proposed behind a step, whose tokens are then kept."""
        is_asked = started.ahead is not None
        return not (is_asked or started.lost) and drafting.keeps(started.plan, drawn)

    def _continue_shapes(
        self, started: StepInFlight, output: StepOutput, shaping: Shaping
    ) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Give the grammars what was drawn; return what they force then, by slot.

        Another step in flight draws its tokens itself. Its masks may be computed now.
        """
        state, work = self.state, started.mask_work
        forced = []
        if shaping.is_used:
            failed = {slot for slot, _ in output.failures}.union(state.failures)
            for sample, slot in enumerate(started.step.draws.slots.tolist()):
                if slot not in shaping or slot in started.lost:
                    continue
                drawn = output.tokens[sample]
                shaping.advance(slot, drawn)
                failure = shaping.failure(slot)
                if failure is not None:
                    state.fail(slot, failure.message, is_impossible=failure.is_impossible)
                elif not self._in_flight and slot not in failed and (run := shaping.forced(slot)):
                    end = _next_position(started, sample, len(drawn))
                    tokens = tuple(run[: state.room_behind(end)])
                    forced.append((slot, tokens))
                    shaping.advance(slot, tokens)
                    state.set_known(slot, end - 1, (drawn[-1], *tokens))
        if work is not None:
            shaping.end(work)
        self._begin_masks(shaping)
        self._appended = dict(forced)
        return tuple(forced)

    def _begin_masks(self, shaping: Shaping) -> None:
        """Compute the masks of those steps in flight before which all tokens of their texts are.

        Stages have steps of different sequences, which need not wait for each other.
        """
        drawn: set[int] = set()
        for started in self._in_flight:
            work = started.mask_work
            if work is not None and not (work.has_begun or work.depends_on(drawn)):
                shaping.start(work, is_running=True)
            drawn.update(started.step.draws.slots.tolist())

    def _with_errors(
        self, plan: StepPlan, result: StepResult, failed_before: tuple[int, ...]
    ) -> StepResult:
        """Add the errors of failed slots, and keep of them what this step gave before it failed.

        These are accepted drafts and log-probabilities. Vectors of hidden states are not kept.
        """
        failures = self.state.failures
        chunks = list(zip(plan.slots, result.tokens, strict=True))
        impossible = self.state.impossible
        return result._replace(
            tokens=tuple([NO_TOKEN if slot in failures else token for slot, token in chunks]),
            accepted=tuple([pair for pair in result.accepted if pair[0] not in failed_before]),
            payloads=tuple(
                [
                    (slot, payload)
                    for slot, payload in result.payloads
                    if slot not in failures
                    or (slot not in failed_before and isinstance(payload, LogprobsPayload))
                ]
            ),
            errors=tuple([(slot, failures[slot]) for slot, _ in chunks if slot in failures]),
            impossible=tuple([slot for slot, _ in chunks if slot in impossible]),
        )

    def _fail(self, slot: int, message: str) -> None:
        """Note a failure of a draw."""
        if message == NO_TOKEN_LEFT and self._shaping is not None and self._shaping.is_alone(slot):
            message = NO_TOKEN_FITS
        is_impossible = message in (NO_TOKEN_LEFT, NO_TOKEN_FITS)
        self.state.fail(slot, message, is_impossible=is_impossible)

    def _behind(self, slot: int, vectors: Floats) -> Floats:
        """Apply the layers behind pooling that a slot's request asks for, if any."""
        pooling = self.state.pooling.get(slot)
        head = self._heads.get(pooling.head) if pooling is not None else None
        return vectors if head is None else head(vectors)


def _slots(started: StepInFlight) -> Sequence[int]:
    """Return the slot of each sample."""
    plan, chunks = started.plan, started.step.chunks
    return plan.slots if chunks is None else [plan.slots[chunk] for chunk in chunks.tolist()]


def _next_position(started: StepInFlight, sample: int, num_drawn: int) -> int:
    """Return the position behind the last token of a sample."""
    plan, step = started.plan, started.step
    chunk = sample if step.chunks is None else int(step.chunks[sample])
    num_drafts = len(dict(plan.drafts).get(plan.slots[chunk], ()))
    return plan.starts[chunk] + plan.counts[chunk] - num_drafts + num_drawn


def _sampled(
    started: StepInFlight, drawn: tuple[tuple[int, ...], ...]
) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """Return the last drawn token of each chunk, and how many drafts of each slot were accepted."""
    chunks = started.step.chunks
    tokens = [NO_TOKEN] * len(started.plan.slots)
    accepted = []
    for sample, slot in enumerate(started.step.draws.slots.tolist()):
        chunk = sample if chunks is None else chunks[sample]
        tokens[chunk] = drawn[sample][-1]
        if len(drawn[sample]) > 1:
            accepted.append((slot, len(drawn[sample]) - 1))
    return tuple(tokens), tuple(accepted)


def _walks(
    started: StepInFlight, drawn: tuple[tuple[int, ...], ...]
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return which drafts were accepted of slots where these are in branches, or behind some."""
    draws, walks = started.step.draws, []
    assert draws.num_drafts is not None
    branched = {branch.slot: None for branch in started.plan.branches}
    ends = np.cumsum(draws.num_drafts)
    for sample, slot in enumerate(draws.slots.tolist()):
        if slot not in branched:
            continue
        own = slice(int(ends[sample] - draws.num_drafts[sample]), int(ends[sample]))
        parents = (draws.parents[own] - 1).tolist()
        walk = walked(parents, draws.drafts[own].tolist(), drawn[sample][:-1])
        if walk != [*range(len(walk))]:
            walks.append((slot, tuple(walk)))
    return tuple(walks)


def _payloads(
    started: StepInFlight, output: StepOutput, behind: Callable[[int, Floats], Floats]
) -> tuple[tuple[int, object], ...]:
    rows_of = {part.slot: part.num_rows for part in started.step.draws.pools if part.apart}
    payloads: list[tuple[int, object]] = []
    for slot, vectors in output.pooled:
        start = started.step.pool_starts[slot] if slot in rows_of else 0
        count = rows_of.get(slot, 1)
        values = array("f", behind(slot, vectors.reshape(count, -1)).tobytes())
        payloads.append((slot, HiddenPayload(values, count, start)))
    sampled = {rows.slot: _entries(rows) for rows in output.logprobs}
    prompts = {rows.slot: _entries(rows) for rows in output.prompts}
    starts = started.step.prompt_starts
    for slot in dict.fromkeys((*sampled, *prompts)):
        start = starts[slot] if slot in prompts else 0
        payload = LogprobsPayload(sampled.get(slot, ()), start, prompts.get(slot, ()))
        payloads.append((slot, payload))
    return tuple(payloads)


def _entries(rows: RowLogprobs) -> tuple[TokenLogprobs, ...]:
    columns = zip(rows.token_ids, rows.logprobs, rows.ranks.tolist(), strict=True)
    return tuple(
        [
            TokenLogprobs(array("i", ids.tobytes()), array("f", logprobs.tobytes()), rank)
            for ids, logprobs, rank in columns
        ]
    )


# What few engines have is imported by those that have it, before they are confined.


def _transfers(store: KVStore | None, backend: Backend) -> Transfers | None:
    if store is None:
        return None
    from octavo.runner.transfers import Transfers

    return Transfers(store, backend)


def _second_model(proposer: Proposer | None) -> AheadProposer | None:
    """Return the proposer if it drafts with a second model."""
    if proposer is None:
        return None
    from octavo.runner.speculate.ahead import AheadProposer

    return proposer if isinstance(proposer, AheadProposer) else None


def _adapter_slots(adapters: AdapterSupply | None) -> AdapterSlots | None:
    if adapters is None:
        return None
    from octavo.runner.adapter_slots import AdapterSlots

    return AdapterSlots(adapters)
