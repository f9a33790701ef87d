"""The two messages of a step: one plan to the workers, one result back.

A worker keeps a row of state for each slot, so a plan contains only differences:

    freed       slots to forget, before anything else
    opened      slots that start now, with the whole state of their sequence
    copies      (source, destination) blocks to copy, in this order, before any write of the step
    new_blocks  (slot, a tuple of ids for each KV group) to append to the slot's block tables
    slots, starts, counts, samples
                one entry for each chunk: compute `counts` positions from `starts` on; `samples`
                says that the chunk reaches the last expected token, so its last row is sampled
    drafts      (slot, tokens): the last tokens of that slot's chunk are drafts to be verified

The hardest rule: a plan may be made while earlier ones still run, so a chunk may cover a token
that the core does not know yet. It is always the slot's own last sample, which the worker has.
Workers run plans strictly in order; that alone makes it safe to reuse a block or a slot in the
plan after the one that last used it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import NamedTuple

from octavo.core.sampling_params import SamplingParams

NO_TOKEN = -1  # in StepResult.tokens: this chunk sampled nothing


@dataclass(frozen=True, slots=True)
class NewSlot:
    """The whole state of a sequence that gets a slot, for the workers."""

    slot: int
    request_id: str
    tokens: array[int]  # the prompt, and the output that is known already
    num_prompt: int
    tables: tuple[tuple[int, ...], ...]  # a block table for each KV group
    sampling: SamplingParams
    lora: str | None
    stop_ids: tuple[int, ...] = ()  # not sampled before min_tokens


class StepPlan(NamedTuple):
    """One step's work for every worker. Chunks are parallel tuples, which become arrays there."""

    step: int
    freed: tuple[int, ...]
    opened: tuple[NewSlot, ...]
    copies: tuple[tuple[int, int], ...]
    new_blocks: tuple[tuple[int, tuple[tuple[int, ...], ...]], ...]
    slots: tuple[int, ...]
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    samples: tuple[bool, ...]
    drafts: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def num_tokens(self) -> int:
        """The number of positions computed in this step."""
        return sum(self.counts)


class TokenLogprobs(NamedTuple):
    """The model's log-probabilities at one position, before any sampling parameter is applied.

    The first entry is the token at that position. The most likely tokens follow, best first, as
    many as the request asks for (the first may be among them); their ranks are 1, 2, ….
    """

    token_ids: array[int]
    logprobs: array[float]
    rank: int  # of the first: one more than the number of likelier tokens


@dataclass(frozen=True, slots=True)
class LogprobsPayload:
    """The payload of a request that asks for log-probabilities.

    Those of the prompt come chunk by chunk. After a preemption a part may come again, with equal
    bits; `prompt_start` says where it belongs.
    """

    sampled: tuple[TokenLogprobs, ...] = ()  # of every sampled token, those cut off included
    prompt_start: int = 0  # the position of prompt[0] in the prompt
    prompt: tuple[TokenLogprobs, ...] = ()  # position 0 has none


@dataclass(frozen=True, slots=True)
class HiddenPayload:
    """The payload of a request for an embedding of its prompt; it may come more than once."""

    values: array[float]


class StepResult(NamedTuple):
    """The result of a step. `tokens` has one entry for each chunk; the rest is sparse."""

    step: int
    tokens: tuple[int, ...]  # the sampled token, NO_TOKEN for a chunk that samples nothing
    accepted: tuple[tuple[int, int], ...] = ()  # (slot, how many of its drafts were accepted)
    drafts: tuple[tuple[int, tuple[int, ...]], ...] = ()  # (slot, drafts of its next tokens)
    payloads: tuple[tuple[int, object], ...] = ()  # (slot, log-probabilities and the like)
    errors: tuple[tuple[int, str], ...] = ()  # (slot, why this sequence failed)
