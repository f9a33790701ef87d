"""The worker that runs plans: differences, copies, one forward pass, sampling, and the result.

Drafts are verified exactly: each is accepted if and only if it is the token that would have been
drawn in its place. This works for seeded as for greedy sampling, since noise depends on the
position and not on the time. Speculation therefore changes no text.

A failure of one sequence (logits that are not finite, rules that leave no token) is an error of
that sequence alone. It stays failed until its slot is freed, since later plans may already be in
flight.

The arrays of a forward pass are valid until the next one. Nothing of them is kept: pooled vectors,
tokens and log-probabilities are copies.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from octavo.backends.base import Backend, Floats, Ints, Longs
from octavo.core.config import CoreConfig
from octavo.core.plan import (
    NO_TOKEN,
    HiddenPayload,
    LogprobsPayload,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from octavo.core.sampling_params import LogitsProcessor
from octavo.runner.batch import Wanted
from octavo.runner.batch_reuse import BatchReuse
from octavo.runner.logprobs import token_logprobs
from octavo.runner.sampler import NOT_FINITE, Sampler
from octavo.runner.slots import NO_LOGPROBS, SlotState
from octavo.runner.speculate.drafting import Drafting
from octavo.runner.speculate.proposer import Proposer


@dataclass(slots=True)
class _PartialResult:
    """The parts of a result while it is computed."""

    tokens: list[int]
    accepted: dict[int, int] = field(default_factory=dict)
    sampled: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    prompts: dict[int, tuple[int, tuple[TokenLogprobs, ...]]] = field(default_factory=dict)
    hidden: dict[int, HiddenPayload] = field(default_factory=dict)


class ModelRunner:
    """One worker: a backend with a model and its cache, and the state of the slots."""

    def __init__(
        self,
        backend: Backend,
        vocabulary: int,
        config: CoreConfig,
        *,
        processors: Mapping[str, LogitsProcessor] | None = None,
        proposer: Proposer | None = None,
    ) -> None:
        self._backend = backend
        self._drafting: Drafting | None = None
        if proposer is not None and config.max_drafts:
            self._drafting = Drafting(proposer, vocabulary, config)
        self.state = SlotState(config, vocabulary, processors or {})
        self._sampler = Sampler(self.state, backend.sampling)
        self._batches = BatchReuse(self.state)

    def run(self, plan: StepPlan) -> StepResult:
        """Run a step, in the order that plan.py promises."""
        state = self.state
        for slot in plan.freed:
            state.free(slot)
            if self._drafting is not None:
                self._drafting.free(slot)
        for new in plan.opened:
            state.open(new)
            if self._drafting is not None:
                self._drafting.open(new.slot)
        if plan.copies:
            self._backend.copy_blocks(plan.copies)
        for slot, blocks in plan.new_blocks:
            state.grow(slot, blocks)
        if not plan.slots:
            return StepResult(plan.step, ())
        batch, wanted = self._batches.make(plan)
        logits, hidden = self._backend.forward(batch)
        partial = _PartialResult([NO_TOKEN] * len(plan.slots))
        if wanted.prompts:
            self._add_prompt_logprobs(logits, wanted, partial)
        if wanted.hidden:
            self._pool(hidden, wanted, partial)
        self._sample(logits, wanted, partial)
        return self._result(plan, wanted, partial)

    # sampling

    def _sample(self, logits: Floats, wanted: Wanted, partial: _PartialResult) -> None:
        """Draw a token for every sampling chunk, and another after each accepted draft."""
        if not len(wanted.slots):
            return
        tokens = self._draw(logits, wanted.first_rows, wanted.slots, partial)
        if len(tokens) == len(partial.tokens) and not wanted.drafts:
            partial.tokens = tokens.tolist()
            if not (wanted.prompts or wanted.hidden):
                self._batches.drawn = tokens
            return
        drawn = dict(zip(wanted.slots.tolist(), tokens.tolist(), strict=True))
        rows = dict(zip(wanted.slots.tolist(), wanted.first_rows.tolist(), strict=True))
        checked = list(wanted.drafts)
        round_number = 0
        while checked:
            checked = [
                slot for slot in checked if self._is_right(slot, round_number, drawn, wanted)
            ]
            round_number += 1
            for slot in checked:
                partial.accepted[slot] = round_number
            if checked:
                again = np.array([rows[slot] + round_number for slot in checked])
                tokens = self._draw(logits, again, np.array(checked), partial)
                drawn.update(zip(checked, tokens.tolist(), strict=True))
        for chunk, slot in zip(wanted.chunks.tolist(), wanted.slots.tolist(), strict=True):
            partial.tokens[chunk] = drawn[slot]

    def _is_right(self, slot: int, index: int, drawn: dict[int, int], wanted: Wanted) -> bool:
        drafts = wanted.drafts[slot]
        right = index < len(drafts) and drafts[index] == drawn[slot]
        return right and slot not in self.state.failures

    def _draw(self, logits: Floats, rows: Longs, slots: Longs, partial: _PartialResult) -> Ints:
        """Sample these slots from these rows, and append the tokens to their sequences."""
        state = self.state
        tokens, failures = self._sampler.draw(logits, slots, rows)
        if failures:
            state.failures = failures | state.failures  # the first counts
        if state.wants_logprobs:
            self._add_sample_logprobs(logits, rows, slots, tokens, partial)
        self._sampler.append(slots, tokens)
        return tokens

    def _add_sample_logprobs(
        self, logits: Floats, rows: Longs, slots: Longs, tokens: Ints, partial: _PartialResult
    ) -> None:
        state, kernel = self.state, self._backend.sampling
        counts = state.num_logprobs[slots]
        wanting = np.flatnonzero(counts != NO_LOGPROBS)
        entries = token_logprobs(kernel, logits, rows[wanting], tokens[wanting], counts[wanting])
        for slot, entry in zip(slots[wanting].tolist(), entries, strict=True):
            if entry is not None and slot not in state.failures:
                partial.sampled.setdefault(slot, []).append(entry)

    def _add_prompt_logprobs(self, logits: Floats, wanted: Wanted, partial: _PartialResult) -> None:
        state = self.state
        for part in wanted.prompts:
            rows = np.arange(part.first_row, part.first_row + part.count)
            counts = np.full(part.count, state.num_prompt_logprobs[part.slot])
            first = part.first_position
            tokens = state.tokens[part.slot, first : first + part.count]
            entries = token_logprobs(self._backend.sampling, logits, rows, tokens, counts)
            finite = tuple([entry for entry in entries if entry is not None])
            if len(finite) == part.count:
                partial.prompts[part.slot] = (first, finite)
            else:
                state.failures.setdefault(part.slot, NOT_FINITE)

    def _pool(self, states: Floats, wanted: Wanted, partial: _PartialResult) -> None:
        """Add this step's hidden states to the embeddings of prompts."""
        for part in wanted.hidden:
            rows = states[part.first_row : part.first_row + part.count]
            vector = self.state.pools[part.slot].add(rows)
            if vector is None:
                continue
            if np.isfinite(vector).all():
                partial.hidden[part.slot] = HiddenPayload(array("f", vector.tobytes()))
            else:
                self.state.failures.setdefault(part.slot, NOT_FINITE)

    # the result

    def _result(self, plan: StepPlan, wanted: Wanted, partial: _PartialResult) -> StepResult:
        errors = self._errors(plan, partial) if self.state.failures else ()
        has_payloads = partial.sampled or partial.prompts or partial.hidden
        payloads = self._payloads(partial) if has_payloads else ()
        return StepResult(
            plan.step,
            tuple(partial.tokens),
            tuple(partial.accepted.items()),
            self._propose(wanted),
            payloads,
            errors,
        )

    def _errors(self, plan: StepPlan, partial: _PartialResult) -> tuple[tuple[int, str], ...]:
        """Return the failed slots with their messages, and drop all other results of them."""
        errors = []
        for chunk, slot in enumerate(plan.slots):
            message = self.state.failures.get(slot)
            if message is not None:
                errors.append((slot, message))
                partial.tokens[chunk] = NO_TOKEN
                for part in (partial.accepted, partial.sampled, partial.prompts, partial.hidden):
                    part.pop(slot, None)
        return tuple(errors)

    def _payloads(self, partial: _PartialResult) -> tuple[tuple[int, object], ...]:
        payloads: list[tuple[int, object]] = list(partial.hidden.items())
        for slot in dict.fromkeys((*partial.sampled, *partial.prompts)):
            start, prompt = partial.prompts.get(slot, (0, ()))
            sampled = tuple(partial.sampled.get(slot, ()))
            payloads.append((slot, LogprobsPayload(sampled, start, prompt)))
        return tuple(payloads)

    def _propose(self, wanted: Wanted) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return drafts for the slots that have sampled."""
        if self._drafting is None:
            return ()
        state = self.state
        sampled = [slot for slot in wanted.slots.tolist() if slot not in state.failures]
        return self._drafting.propose(sampled, state.known)
