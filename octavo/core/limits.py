"""Reasons to schedule fewer tokens, or none: one small class each, and `schedule` names none.

The scheduler asks every limiter in turn. `admits` is asked of a waiting sequence before any work
is put into it, `clip` of every chunk, `commit` tells of every chunk that was planned, `enter` of
every sequence that begins to run, `leave` of every one that no longer does. `clip` and `commit`
cost nothing where a limiter does not override them, nor for sequences that decode where it says
that those are no business of its own.

The hardest invariant: a limiter may refuse for as long as others run, never for ever. A sequence
that is alone gets at least one token of what it needs, or `refuse` has said at the door that it
never would.
"""

from __future__ import annotations

from octavo.core import stats
from octavo.core.config import CoreConfig
from octavo.core.request import Request
from octavo.core.sequence import Sequence


class Limiter:
    """One reason. The hooks do nothing unless overridden."""

    reason = stats.BUDGET  # what a waiting sequence it turns away is said to wait for
    particular = False  # its refusal concerns that sequence alone: those behind it may pass
    of_prompts = False  # `clip` and `commit` are asked of sequences that catch up, and of no others

    def refuse(self, request: Request, max_total: int) -> str | None:
        """Why this request could never run to `max_total` known tokens; None if it could."""
        return None

    def begin(self) -> None:
        """A new step is being planned."""

    def admits(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence might get a token in this step."""
        return True

    def clip(self, sequence: Sequence, count: int) -> int:
        """How many of the next `count` tokens may be planned."""
        return count

    def commit(self, sequence: Sequence, count: int) -> None:
        """These tokens have been planned."""

    def enter(self, sequence: Sequence) -> None:
        """The sequence begins to run; its first chunk has been told of."""

    def leave(self, sequence: Sequence) -> None:
        """The sequence runs no more: finished, aborted, failed or preempted."""


class OneInFlight(Limiter):
    """With speculation: nothing is planned behind a sample that has not come back.

    Drafts continue the newest token; behind an unknown one there is nothing to continue.
    """

    def clip(self, sequence: Sequence, count: int) -> int:
        return 0 if sequence.num_expected > len(sequence.tokens) else count


class LongPrefill(Limiter):
    """No chunk is longer than the cap, so that a long prompt does not crowd out the others."""

    def __init__(self, most: int) -> None:
        self.most = most

    def clip(self, sequence: Sequence, count: int) -> int:
        return min(count, self.most)


class TokenBudget(Limiter):
    """No step computes more tokens than the budget."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.remaining = budget

    def begin(self) -> None:
        self.remaining = self.budget

    def admits(self, sequence: Sequence) -> bool:
        return self.remaining > 0

    def clip(self, sequence: Sequence, count: int) -> int:
        remaining = self.remaining
        return count if count < remaining else remaining

    def commit(self, sequence: Sequence, count: int) -> None:
        self.remaining -= count


class ToldPrompts(Limiter):
    """No step computes more tokens of prompts whose log-probabilities are told than the cap.

    Each of them takes a row of logits, as long as the vocabulary, where others take none.
    """

    # One that waits for its turn to be told of keeps nobody from the budget that it cannot use.
    particular = True
    of_prompts = True

    def __init__(self, most: int) -> None:
        self.most = most
        self.remaining = most

    def begin(self) -> None:
        self.remaining = self.most

    def admits(self, sequence: Sequence) -> bool:
        return self.remaining > 0 or not _is_told(sequence, 0)

    def clip(self, sequence: Sequence, count: int) -> int:
        return min(count, self.remaining) if _is_told(sequence, sequence.num_planned) else count

    def commit(self, sequence: Sequence, count: int) -> None:
        if _is_told(sequence, sequence.num_planned - count):
            self.remaining -= count


def _is_told(sequence: Sequence, start: int) -> bool:
    """Whether a chunk from `start` on tells of its prompt; a preempted one has told of all."""
    num_prompt = sequence.num_prompt
    told = sequence.request.sampling.prompt_logprobs
    return told is not None and start + 1 < num_prompt == len(sequence.tokens)


class WholePrompt(Limiter):
    """Without chunked prefill: all that a sequence lacks is computed in one step, or nothing.

    It stands behind the limiters that cut. The whole sequence must fit in one step, not the
    prompt alone: after a preemption its output is computed with it.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget

    def refuse(self, request: Request, max_total: int) -> str | None:
        if max_total - 1 <= self.budget:
            return None
        return (
            f"prompt ({len(request.prompt)} tokens) and max_tokens "
            f"({request.sampling.max_tokens}) come to more than max_num_batched_tokens="
            f"{self.budget}, and chunked prefill is off; shorten them, raise it or turn it on"
        )

    def clip(self, sequence: Sequence, count: int) -> int:
        cut = sequence.catching_up and sequence.num_planned + count < sequence.num_expected
        return 0 if cut else count


class AdapterSlots(Limiter):
    """At most so many different adapters run at once; a sequence with another one waits."""

    reason = stats.ADAPTERS
    particular = True

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.running: dict[str, dict[str, None]] = {}  # adapter → ids of the sequences that use it

    def refuse(self, request: Request, max_total: int) -> str | None:
        if request.lora is None or self.num_slots:
            return None
        return f"adapter {request.lora!r} is asked for, but max_loras=0: the engine runs without"

    def admits(self, sequence: Sequence) -> bool:
        lora = sequence.request.lora
        return lora is None or lora in self.running or len(self.running) < self.num_slots

    def enter(self, sequence: Sequence) -> None:
        if sequence.request.lora is not None:
            self.running.setdefault(sequence.request.lora, {})[sequence.request_id] = None

    def leave(self, sequence: Sequence) -> None:
        lora = sequence.request.lora
        if lora is not None and lora in self.running:
            self.running[lora].pop(sequence.request_id, None)
            if not self.running[lora]:
                del self.running[lora]


def limiters_for(config: CoreConfig) -> tuple[Limiter, ...]:
    """The limiters a configuration calls for, those that cut before those that judge the cut."""
    chosen: list[Limiter] = []
    if config.max_drafts:
        chosen.append(OneInFlight())
    if config.long_prefill_tokens:
        chosen.append(LongPrefill(config.long_prefill_tokens))
    chosen.append(TokenBudget(config.max_num_batched_tokens))
    if config.told_prompt_tokens:
        chosen.append(ToldPrompts(config.told_prompt_tokens))
    if not config.chunked_prefill:
        chosen.append(WholePrompt(config.max_num_batched_tokens))
    chosen.append(AdapterSlots(config.max_loras))
    return tuple(chosen)
