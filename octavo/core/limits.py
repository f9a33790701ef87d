"""Reasons to plan fewer tokens, or none: one small class each; the scheduler knows only the hooks.

The scheduler calls the hooks of every limiter: `admits` for a waiting sequence before any work is
spent on it, `clip` and `commit` for every chunk, `enter` when a sequence begins to run, `leave`
when it stops running. `clip` and `commit` are in the hot loop over the running sequences. They
cost nothing where a limiter does not override them, nor for decoding sequences where it declares
`prefill_only`.

The hardest invariant: a limiter may delay a sequence while others run, never for ever. A sequence
that is alone must get at least one token, unless `refuse` has rejected its request beforehand.
docs/how-to/add-a-limiter.md shows how to add one.
"""

from __future__ import annotations

from octavo.core.config import CoreConfig
from octavo.core.request import Request
from octavo.core.sequence import Sequence
from octavo.core.stats import ADAPTERS, BUDGET


class Limiter:
    """The hooks of a limiter. Each does nothing unless it is overridden."""

    reason = BUDGET  # reported as the reason why a sequence waits that `admits` keeps waiting
    may_be_passed = False  # sequences behind one that it keeps waiting may be admitted before it
    prefill_only = False  # `clip` and `commit` are not called for sequences that decode

    def refuse(self, request: Request, max_total: int) -> str | None:
        """Return why this request could never reach `max_total` known tokens; None if it could."""
        return None

    def begin(self) -> None:
        """Prepare for the planning of a new step."""

    def admits(self, sequence: Sequence) -> bool:
        """Return whether a waiting sequence might get a token in this step."""
        return True

    def clip(self, sequence: Sequence, count: int) -> int:
        """Return how many of the next `count` tokens may be planned."""
        return count

    def commit(self, sequence: Sequence, count: int) -> None:
        """Count tokens that have been planned; `num_planned` includes them already."""

    def enter(self, sequence: Sequence) -> None:
        """Count a sequence that begins to run, after `commit` for its first chunk."""

    def leave(self, sequence: Sequence) -> None:
        """Stop counting a sequence that finished, was aborted, failed or was preempted."""


class OneInFlight(Limiter):
    """A cap for speculation: nothing is planned behind a sample that is in flight.

    Drafts continue the newest token, so none can be made while that token is unknown.
    """

    def clip(self, sequence: Sequence, count: int) -> int:
        return 0 if sequence.num_expected > len(sequence.tokens) else count


class LongPrefill(Limiter):
    """A cap on the length of a chunk, so that a long prompt leaves room for other requests."""

    def __init__(self, most: int) -> None:
        self.most = most

    def clip(self, sequence: Sequence, count: int) -> int:
        return min(count, self.most)


class TokenBudget(Limiter):
    """A cap on the tokens of a step."""

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


class PromptLogprobs(Limiter):
    """A cap on a step's prompt tokens whose log-probabilities are reported.

    Each of them needs a row of logits as long as the vocabulary; other prompt tokens need none.
    """

    may_be_passed = True  # requests without prompt_logprobs do not compete for this cap
    prefill_only = True

    def __init__(self, most: int) -> None:
        self.most = most
        self.remaining = most

    def begin(self) -> None:
        self.remaining = self.most

    def admits(self, sequence: Sequence) -> bool:
        return self.remaining > 0 or not _reports_prompt(sequence, 0)

    def clip(self, sequence: Sequence, count: int) -> int:
        if _reports_prompt(sequence, sequence.num_planned):
            return min(count, self.remaining)
        return count

    def commit(self, sequence: Sequence, count: int) -> None:
        if _reports_prompt(sequence, sequence.num_planned - count):
            self.remaining -= count


def _reports_prompt(sequence: Sequence, start: int) -> bool:
    """Return whether a chunk from `start` on reports log-probabilities of its prompt.

    A sequence that has generated tokens has reported its whole prompt before it was preempted.
    """
    num_prompt = sequence.num_prompt
    wanted = sequence.request.sampling.prompt_logprobs is not None
    return wanted and start + 1 < num_prompt == len(sequence.tokens)


class WholePrompt(Limiter):
    """A refusal to cut a prefill: everything that a sequence lacks in one step, or nothing.

    It must come after the limiters that clip. The whole sequence must fit into one step, not
    only the prompt: after a preemption, its output is computed together with the prompt.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget

    def refuse(self, request: Request, max_total: int) -> str | None:
        if max_total - 1 <= self.budget:
            return None
        return (
            f"the prompt ({len(request.prompt)} tokens) and max_tokens "
            f"({request.sampling.max_tokens}) exceed max_num_batched_tokens={self.budget}, and "
            "chunked prefill is off; shorten them, raise the limit or turn chunked prefill on"
        )

    def clip(self, sequence: Sequence, count: int) -> int:
        cut = sequence.catching_up and sequence.num_planned + count < sequence.num_expected
        return 0 if cut else count


class AdapterSlots(Limiter):
    """A cap on the different adapters that run at once."""

    reason = ADAPTERS
    may_be_passed = True

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


def overrides(limiter: Limiter, hook: str) -> bool:
    """Return whether a limiter overrides a hook; others need not be called."""
    return getattr(type(limiter), hook) is not getattr(Limiter, hook)


def limiters_for(config: CoreConfig) -> tuple[Limiter, ...]:
    """Return the limiters that a configuration asks for: first those that clip to a number."""
    chosen: list[Limiter] = []
    if config.max_drafts:
        chosen.append(OneInFlight())
    if config.long_prefill_tokens:
        chosen.append(LongPrefill(config.long_prefill_tokens))
    chosen.append(TokenBudget(config.max_num_batched_tokens))
    if config.prompt_logprob_tokens:
        chosen.append(PromptLogprobs(config.prompt_logprob_tokens))
    if not config.chunked_prefill:
        chosen.append(WholePrompt(config.max_num_batched_tokens))
    chosen.append(AdapterSlots(config.max_loras))
    return tuple(chosen)
