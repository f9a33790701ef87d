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

import math

from octavo.core.config import CoreConfig
from octavo.core.pace.ahead_counts import AheadCounts
from octavo.core.pace.learner import Learner
from octavo.core.pace.step_time import GROWTH, PromptCost
from octavo.core.plan_draft import PlanDraft
from octavo.core.request import Request
from octavo.core.sequence import NO_SLOT, UNLIMITED, Line, Sequence
from octavo.core.stats import ADAPTERS, BUDGET, PACE, EngineStats


class Limiter:
    """The hooks of a limiter. Each does nothing unless it is overridden."""

    reason = BUDGET  # reported as the reason why a sequence waits that `admits` keeps waiting
    may_be_passed = False  # sequences behind one that it keeps waiting may be admitted before it
    prefill_only = False  # `clip` and `commit` are not called for sequences that decode

    def refuse(self, request: Request, max_total: int) -> str | None:
        """Return why this request could never reach `max_total` known tokens; None if it could."""
        return None

    def begin(self, draft: PlanDraft, now: float) -> None:
        """Prepare for the planning of a new step, whose parts will be added to `draft`."""

    def admits(self, sequence: Sequence) -> bool:
        """Return whether a waiting sequence might get a token in this step."""
        return True

    def clip(self, sequence: Sequence, count: int) -> int:
        """Return how many of the next `count` tokens may be planned."""
        return count

    def commit(self, sequence: Sequence, count: int) -> None:
        """Count tokens that have been planned; `num_planned` includes them already."""

    def enter(self, sequence: Sequence) -> None:
        """Count a sequence that begins to run, before its first chunk is planned."""

    def leave(self, sequence: Sequence) -> None:
        """Stop counting a sequence that finished, was aborted, failed or was preempted."""


class LongPrefill(Limiter):
    """A cap on the length of a chunk, so that a long prompt leaves room for other requests."""

    def __init__(self, most: int) -> None:
        self.most = most

    def clip(self, sequence: Sequence, count: int) -> int:
        return min(count, self.most)


class PrefillShare(Limiter):
    """A cap on the prefills of one owner, so that those of others get tokens in each step."""

    prefill_only = True

    def clip(self, sequence: Sequence, count: int) -> int:
        allotment = sequence.line.allotment
        return count if count < allotment else allotment

    def commit(self, sequence: Sequence, count: int) -> None:
        sequence.line.allotment -= count


class TokenBudget(Limiter):
    """A cap on the tokens of a step."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.remaining = budget

    def begin(self, draft: PlanDraft, now: float) -> None:
        self.remaining = self.budget

    def admits(self, sequence: Sequence) -> bool:
        return self.remaining > 0

    def clip(self, sequence: Sequence, count: int) -> int:
        remaining = self.remaining
        return count if count < remaining else remaining

    def commit(self, sequence: Sequence, count: int) -> None:
        self.remaining -= count


class StageShare(Limiter):
    """A cap on what a step computes, so that all stages compute at the same time.

    A step begins while others are in later stages, so it has no sequence whose last token these
    draw. A sequence that may draft lets one step at a time be in flight, which then has all.

    Sequences that decode are divided into equal groups, as many as there are stages, but none with
    few of them. A small part of them waits for a larger one, which is drawn, to be one group with
    it. It does not wait for a smaller one: so it waits for few steps, whatever arrives.
    """

    def __init__(self, config: CoreConfig) -> None:
        self.num_stages, self.cuts_prompts = config.num_stages, config.chunked_prefill
        self._least, self._prompt_tokens = config.stage_sequences, config.stage_prompt_tokens
        self.running: dict[str, Sequence] = {}  # by request id
        self.num_drafting = 0
        self.num_left = 0  # sequences that decode
        self.prompt_tokens = 0  # that are left

    def begin(self, draft: PlanDraft, now: float) -> None:
        self.num_left, self.prompt_tokens = UNLIMITED, UNLIMITED
        if self.num_drafting:
            return
        num_drawn = num_ready = 0
        for each in self.running.values():
            if each.num_expected > len(each.tokens):
                num_drawn += 1
            elif not each.catching_up:
                num_ready += 1
        both = num_drawn + num_ready
        num_groups = max(1, min(self.num_stages, both // self._least))
        is_part = num_ready < both // num_groups and num_ready <= num_drawn
        self.num_left = 0 if is_part else -(-both // num_groups)
        self.prompt_tokens = self._prompt_tokens

    def admits(self, sequence: Sequence) -> bool:
        return self.prompt_tokens > 0

    def clip(self, sequence: Sequence, count: int) -> int:
        if sequence.num_expected > len(sequence.tokens):
            return 0
        if not sequence.catching_up:
            return count if self.num_left > 0 else 0
        if self.cuts_prompts:
            return min(count, self.prompt_tokens)
        return count if self.prompt_tokens else 0

    def commit(self, sequence: Sequence, count: int) -> None:
        if sequence.catching_up:
            self.prompt_tokens = max(0, self.prompt_tokens - count)
        else:
            self.num_left -= 1

    def enter(self, sequence: Sequence) -> None:
        self.running[sequence.request_id] = sequence
        self.num_drafting += sequence.may_draft

    def leave(self, sequence: Sequence) -> None:
        del self.running[sequence.request_id]
        self.num_drafting -= sequence.may_draft


class PromptLogprobs(Limiter):
    """A cap on a step's prompt tokens whose log-probabilities are reported.

    Each of them needs a row of logits as long as the vocabulary; other prompt tokens need none.
    """

    may_be_passed = True  # requests without prompt_logprobs do not compete for this cap
    prefill_only = True

    def __init__(self, most: int) -> None:
        self.most = most
        self.remaining = most

    def begin(self, draft: PlanDraft, now: float) -> None:
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


# Steps with hardly any prompt that must be known before a step with more is planned.
_FEW_STEPS = 3
# Steps with more in a row, after which one with hardly any shows what the decoding part takes now.
_MOST_BLIND = 64
# The part of the time until a first token is due within which its prompt is planned to be computed.
_PLANNED_SHARE = 0.8


class StepTime(Limiter):
    """A cap on the predicted time of a step in which sequences decode: it cuts prompts.

    In each step the oldest prompt gets a block's tokens at least, whatever they cost, so that it
    always advances; where prompts are not cut, it gets all that it lacks. Where several owners have
    prompts, the oldest of each gets its part of a block, and their shares divide the room: its
    seconds, since a token far inside a long prompt takes many times as long as a first one. If the
    goal is a multiple of the time without prompts, all other steps stay within the goal or are the
    first to show what they cost. While no sequence decodes, nothing is cut.

    A prompt whose first token would be late gets more, as much as it needs in each of the steps
    that are left. If all of it at once would be late too, the running streams keep their pace: an
    engine that has more prompts than it can compute in time misses one goal, not both.
    """

    reason = PACE
    prefill_only = True

    def __init__(self, config: CoreConfig, stats: EngineStats) -> None:
        self.running: dict[str, Sequence] = {}  # by request id
        self.learner = Learner(stats, config.block_size)
        self.times = self.learner.times
        self.ahead: AheadCounts | None = None  # if there is a second model
        self._ratio, self._goal, self._first = config.itl_ratio, config.itl_goal, config.ttft_goal
        self._least = config.block_size
        self._has_stages = config.num_stages > 1
        self._cuts = config.chunked_prefill
        self._draft = PlanDraft()
        self._now = 0.0
        self._num_decoding = 0  # steps that `times` had learned from when it was last asked
        self._num_blind = 0  # steps since the last one with hardly any prompt was learned
        # Of the step that is planned.
        self.num_lines = 1  # that have prompts to compute; shares set it
        self._begun: dict[Line, None] = {}  # those that have got some of their prompts
        self._is_open = False  # the following are known
        self._room = math.inf  # seconds left for prompts; infinite while no sequence decodes
        self._room_tokens = 0
        self._base = 0.0  # seconds of the decoding part, a second model's included
        self._num_prompt = 0  # tokens
        self._cost: PromptCost | None = None  # of the chunk that is planned, if its time counts
        self._is_cut = False

    def begin(self, draft: PlanDraft, now: float) -> None:
        self._draft, self._now, self._is_open = draft, now, False
        self._begun, self.num_lines = {}, 1

    @property
    def room(self) -> float:
        """The seconds left for prompts in this step; infinite if nothing bounds them."""
        if not self._is_open:
            self._open()
        return self._room

    def seconds_for(self, sequence: Sequence) -> float:
        """Return what all that a sequence lacks would add to a step."""
        start = sequence.num_planned
        return self._cost_of(sequence).seconds(start, sequence.num_expected - start)

    def most_prompt_tokens(self, most: int) -> int:
        """Return how many tokens of prompts, of `most`, have room in this step.

        At least a block; and `most` if steps may be longer for first tokens that would be late.
        """
        if self.room == math.inf or self._first:
            return most
        fitting = self.times.prompt_cost(is_pooled=False).most_tokens(0, most, self._room)
        return max(min(fitting, self._room_tokens), min(self._least, most))

    def admits(self, sequence: Sequence) -> bool:
        if not self._is_open or not self._num_prompt:
            return True
        if self._cuts and sequence.line not in self._begun:
            return True
        cost = self._cost_of(sequence)
        num_tokens = len(sequence.tokens)
        if self._needed(sequence, 0, num_tokens, cost):
            return True
        if self._cuts:
            room = min(self._room, sequence.line.room)
            return self._room_tokens > 0 and cost.seconds(0, 1) <= room
        return cost.seconds(0, num_tokens) <= self._room

    def clip(self, sequence: Sequence, count: int) -> int:
        if not self._is_open:
            self._open()
        self._cost = None
        if self._room == math.inf or sequence.num_expected > len(sequence.tokens):
            return count  # the second: its first token is in flight, so it decodes
        self._cost = cost = self._cost_of(sequence)
        start = sequence.num_planned
        needed = self._needed(sequence, start, sequence.num_expected - start, cost)
        if not self._cuts:
            fits = not self._num_prompt or cost.seconds(start, count) <= self._room
            most = count if fits or needed else 0
        else:
            room = min(self._room, sequence.line.room)
            most = min(cost.most_tokens(start, count, room), self._room_tokens)
            if sequence.line not in self._begun:
                most = max(most, self._least // self.num_lines, 1)
            elif sequence.slot == NO_SLOT:
                most = max(most, 1)  # as `admits` has assumed
            most = min(count, max(most, needed))
        self._is_cut = most < count
        self._draft.num_deferred_tokens += count - most
        return most

    def commit(self, sequence: Sequence, count: int) -> None:
        if self._cost is None:
            return
        seconds = self._cost.seconds(sequence.num_planned - count, count)
        self._begun[sequence.line] = None
        self._room -= seconds
        sequence.line.room -= seconds
        self._room_tokens -= count
        self._num_prompt += count
        self._draft.predicted_seconds += seconds
        sequence.stats.num_paced_chunks += self._is_cut

    def enter(self, sequence: Sequence) -> None:
        self.running[sequence.request_id] = sequence

    def leave(self, sequence: Sequence) -> None:
        del self.running[sequence.request_id]

    def _open(self) -> None:
        """Compute the room for prompts in this step, from what the steps that have ended took."""
        self._is_open = True
        self._num_prompt = 0
        self.learner.learn()
        has_learned = self.times.num_decoding > self._num_decoding
        self._num_decoding = self.times.num_decoding
        decoding = self._decoding()
        if decoding is None:
            self._room = math.inf
            return
        self._base = self.times.decoding_seconds(*decoding)
        if self.ahead is not None:
            self._base += self.ahead.expected_seconds
        self._draft.predicted_seconds = self._base
        self._num_blind = 0 if has_learned else self._num_blind + 1
        self._room_tokens = max(self._least, GROWTH * self.times.largest_prompt)
        if self.times.num_decoding < _FEW_STEPS or self._num_blind >= _MOST_BLIND:
            self._room_tokens = self._least
        self._room = max(0.0, (self._goal or self._ratio * self._base) - self._base)

    def _decoding(self) -> tuple[int, int] | None:
        """Return how many tokens are decoded in this step, and how many positions they read.

        None if no sequence decodes. Some of these tokens may be in the draft already.
        """
        draft = self._draft
        num_tokens = sum(draft.counts) - draft.num_prefill_tokens
        num_read = sum(draft.starts) - draft.prefill_starts
        has_drawn = False
        planned = dict.fromkeys([each.request_id for each in draft.sequences if each is not None])
        for name, each in self.running.items():
            if name in planned or each.num_expected >= each.max_total:
                continue
            count = each.num_expected + len(each.drafts) - each.num_planned
            count += each.num_branched
            is_drawn = each.num_expected > len(each.tokens)  # its last token, in a step in flight
            if not each.catching_up and count > 0 and not (is_drawn and self._has_stages):
                num_tokens += count
                num_read += each.num_planned
            elif is_drawn:
                has_drawn = True
        return (num_tokens, num_read) if num_tokens or has_drawn else None

    def _cost_of(self, sequence: Sequence) -> PromptCost:
        return self.times.prompt_cost(is_pooled=sequence.request.sampling.pooling is not None)

    def _needed(self, sequence: Sequence, start: int, lacking: int, cost: PromptCost) -> int:
        """Return how many tokens of a prompt this step must compute, so that its first is in time.

        0 if none must be, or if the first token will be late whatever this step computes.
        """
        is_answered = sequence.stats.first_token_at is not None or bool(sequence.request.emitted)
        if not self._first or is_answered or not self._base:
            return 0
        left = sequence.request.arrival + self._first - self._now
        seconds = cost.seconds(start, lacking)
        if left <= seconds:
            return 0
        num_steps = max(1, int((_PLANNED_SHARE * left - seconds) / self._base))
        return -(-lacking // num_steps)


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
    """A cap on the different adapters that run at once, and the slot of each in the workers.

    An adapter keeps its slot after its last sequence, until another adapter needs a slot: then the
    one that has been idle longest gives its up.
    """

    reason = ADAPTERS
    may_be_passed = True

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.running: dict[str, dict[str, None]] = {}  # adapter → ids of the sequences that use it
        self.slots: dict[str, int] = {}  # by adapter; the idle ones in the order of their leaving

    def refuse(self, request: Request, max_total: int) -> str | None:
        if request.lora is None or self.num_slots:
            return None
        return f"adapter {request.lora!r} is asked for, but max_loras=0: the engine runs without"

    def admits(self, sequence: Sequence) -> bool:
        lora = sequence.request.lora
        return lora is None or lora in self.running or len(self.running) < self.num_slots

    def enter(self, sequence: Sequence) -> None:
        lora = sequence.request.lora
        if lora is not None:
            if lora not in self.slots:
                self.slots[lora] = self._take_slot()
            self.running.setdefault(lora, {})[sequence.request_id] = None
            sequence.adapter = self.slots[lora]

    def _take_slot(self) -> int:
        """Return a slot that no adapter has, or that of the first idle one."""
        if len(self.slots) < self.num_slots:
            return len(self.slots)
        return self.slots.pop(next(lora for lora in self.slots if lora not in self.running))

    def leave(self, sequence: Sequence) -> None:
        lora = sequence.request.lora
        if lora is not None and lora in self.running:
            self.running[lora].pop(sequence.request_id, None)
            if not self.running[lora]:
                self.slots[lora] = self.slots.pop(lora)
                del self.running[lora]


def overrides(limiter: Limiter, hook: str) -> bool:
    """Return whether a limiter overrides a hook; others need not be called."""
    return getattr(type(limiter), hook) is not getattr(Limiter, hook)


def limiters_for(config: CoreConfig, stats: EngineStats) -> tuple[Limiter, ...]:
    """Return the limiters that a configuration asks for: first those that clip to a number."""
    chosen: list[Limiter] = []
    if config.long_prefill_tokens:
        chosen.append(LongPrefill(config.long_prefill_tokens))
    if config.fair_share and config.chunked_prefill:
        chosen.append(PrefillShare())
    chosen.append(TokenBudget(config.max_num_batched_tokens))
    if config.num_stages > 1:
        chosen.append(StageShare(config))
    if config.prompt_logprob_tokens:
        chosen.append(PromptLogprobs(config.prompt_logprob_tokens))
    if config.bounds_step_time:
        chosen.append(StepTime(config, stats))
    if not config.chunked_prefill:
        chosen.append(WholePrompt(config.max_num_batched_tokens))
    chosen.append(AdapterSlots(config.max_loras))
    return tuple(chosen)
