"""The two messages between the core and the workers: one plan down, one result up, a step.

A worker keeps a row of state for each slot, so a plan tells it differences only:

    freed       slots to forget, before anything else
    opened      slots that begin now, with everything known of their sequence
    copies      (source, destination) blocks to copy, in this order, before any write of the step
    new_blocks  (slot, a tuple of ids for each KV group) appended to block tables of known slots
    slots, starts, counts, samples
                one chunk each: compute `counts` positions from `starts`; `samples` says that the
                chunk reaches the last expected token, so that its last row is sampled
    drafts      (slot, tokens): the last tokens of that slot's chunk are guesses to be verified

The hardest rule: a plan may be built while earlier ones still run, so a chunk may cover a token
that nobody knows yet. It is always the slot's own last sample, which the worker has at hand.
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
    """A sequence's whole state, for the workers, at the moment it gets a slot."""

    slot: int
    request_id: str
    tokens: array[int]  # the prompt and what was generated before
    num_prompt: int
    tables: tuple[tuple[int, ...], ...]  # a block table for each KV group
    sampling: SamplingParams
    lora: str | None
    stop_ids: tuple[int, ...] = ()  # all that end it; min_tokens keeps them from being sampled


class StepPlan(NamedTuple):
    """One step's work for every worker. Chunks are parallel tuples: they become arrays there."""

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
        """Positions computed in this step."""
        return sum(self.counts)


class TokenLogprobs(NamedTuple):
    """What the model thought of one position, before any sampling parameter touched it.

    The first entry is the token that stands there; behind it are the most likely ones, best
    first, as many as were asked for (the first may be among them). Ranks of those are 1, 2, ….
    """

    token_ids: array[int]
    logprobs: array[float]
    rank: int  # of the first: one more than there are likelier tokens


@dataclass(frozen=True, slots=True)
class LogprobsPayload:
    """The payload of a request that asked for log-probabilities.

    Prompt parts come chunk by chunk. After a preemption a part may come again, the same to the
    bit; `prompt_start` says where it belongs.
    """

    sampled: tuple[TokenLogprobs, ...] = ()  # of each token the step gave; more if it ended before
    prompt_start: int = 0  # the position in the prompt that prompt[0] is about
    prompt: tuple[TokenLogprobs, ...] = ()  # position 0 has none


@dataclass(frozen=True, slots=True)
class HiddenPayload:
    """The payload of a request that asked for an embedding of its prompt; it may come again."""

    values: array[float]


class StepResult(NamedTuple):
    """What a step gave. `tokens` answers the plan's chunks one for one; the rest is sparse."""

    step: int
    tokens: tuple[int, ...]  # the sampled token, NO_TOKEN for a chunk that samples nothing
    accepted: tuple[tuple[int, int], ...] = ()  # (slot, how many of its drafts were right)
    drafts: tuple[tuple[int, tuple[int, ...]], ...] = ()  # (slot, guesses at its next tokens)
    payloads: tuple[tuple[int, object], ...] = ()  # (slot, log-probabilities and the like)
    errors: tuple[tuple[int, str], ...] = ()  # (slot, what went wrong with this sequence alone)
