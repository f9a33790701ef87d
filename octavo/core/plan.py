"""The two messages of a step: one plan to the workers, one result back.

A worker keeps a row of state for each slot, so a plan contains only differences:

    freed       slots to forget, before anything else
    forgets     proposers forget what they keep beyond requests, before any slot is opened
    opened      slots that start now, with the whole state of their sequence
    saves       blocks whose content is final, to be offered to other places, before any write
    copies      (source, destination, KV group) of blocks to copy, in this order, before any write
    loads       blocks to be filled from other places; a result says later which have arrived
    new_blocks  (slot, a tuple of ids for each KV group) to append to the slot's block tables
    slots, starts, counts, samples
                one entry for each chunk: compute `counts` positions from `starts` on; `samples`
                says that the chunk reaches the last expected token, so its last row is sampled;
                a request that ends with its prompt (max_tokens=0) ends there, without a token
    drafts      (slot, tokens): the last tokens of that slot's chunk are drafts to be verified
    branches    further drafts of slots, where they are a tree (see `Branch`)
    ahead       (slot, chances): a second model computes what it lacks of the slot's known tokens up
                to the end of its chunk; behind the sample, it proposes a token for each of these
                chances that the token is right with all before it. The tables have blocks for it

The hardest rule: a plan may be made while earlier ones still run, so a chunk may cover a token
that the core does not know yet. It is always the slot's own last sample, which the worker has.
Workers run plans strictly in order; that alone makes it safe to reuse a block or a slot in the
plan after the one that last used it. Loads are the exception, since they may take longer than
their step: their blocks belong to no sequence until a result has named them.

In the table of a state group, the entry of a block holds the state after the last position of it
that is computed; a chunk reads the entry of the position before it, and writes those of its own
blocks. Entry 0 (the null block) means that no state is to be kept there. A state must contain no
rejected draft, so it is written after the drafts are verified.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from octavo.core.sampling_params import SamplingParams
from octavo.core.trees.form import DraftTree

NO_TOKEN = -1  # in StepResult.tokens: this chunk sampled nothing
NO_ADAPTER = -1  # in place of the slot of an adapter: the model computes as it is


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
    encodes: tuple[int, ...] = ()  # groups whose encoder positions the first chunk writes
    adapter: int = NO_ADAPTER  # the slot of `lora` among the adapters that the workers hold
    may_draft: bool = False  # results may have drafts for it
    prediction: array[int] = field(default_factory=partial(array, "i"))  # what it may follow
    cache_scope: str = ""  # what proposers keep beyond a request, they share within one scope
    sampler_state: float | None = None  # behind `tokens`, of a sampler that has one


class BlockTransfer(NamedTuple):
    """A block that is saved to another place, or loaded from there, by its content's name."""

    number: int  # of the transfer, so that a result can name it
    group: int
    block: int
    digest: bytes


class Branch(NamedTuple):
    """Drafts of a slot beside those of its chunk: a chain that follows another of its drafts.

    A slot's drafts are numbered: those of its chunk, then those of its branches. Each draft has the
    position behind the one that it follows. For its positions a branch has blocks of its own, which
    are free again behind the step; before them, it reads what it follows. `StepPlan.copies` brings
    what its first block has from before the step. A worker writes there too what this step
    computes of the positions before the branch. If its drafts are accepted, the worker copies its
    blocks to the places of the slot's own.
    """

    slot: int
    after: int  # the number of the draft that it follows; ROOT: the last known token
    tokens: tuple[int, ...]
    # For each group, the blocks of its positions, from its first to its last; none in groups that
    # the first model does not write at each position.
    blocks: tuple[tuple[int, ...], ...]


class StepPlan(NamedTuple):
    """One step's work for every worker. Chunks are parallel tuples, which become arrays there."""

    step: int
    freed: tuple[int, ...]
    opened: tuple[NewSlot, ...]
    copies: tuple[tuple[int, int, int], ...]
    new_blocks: tuple[tuple[int, tuple[tuple[int, ...], ...]], ...]
    slots: tuple[int, ...]
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    samples: tuple[bool, ...]
    drafts: tuple[tuple[int, tuple[int, ...]], ...]
    loads: tuple[BlockTransfer, ...] = ()
    saves: tuple[BlockTransfer, ...] = ()
    ahead: tuple[tuple[int, tuple[float, ...]], ...] = ()
    forgets: bool = False
    branches: tuple[Branch, ...] = ()
    ahead_trees: tuple[tuple[int, DraftTree], ...] = ()

    @property
    def num_tokens(self) -> int:
        """The number of rows computed in this step."""
        return sum(self.counts) + self.num_branched

    @property
    def num_branched(self) -> int:
        """The number of drafts in branches."""
        return sum([len(branch.tokens) for branch in self.branches])


class TokenLogprobs(NamedTuple):
    """The model's log-probabilities at one position, before any sampling parameter is applied.

    Where the text must have a shape, they are those among the tokens that the shape allows.

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
    """The payload of a request for vectors of its prompt; it may come more than once.

    The vectors of all positions come chunk by chunk. After a preemption a part may come again, with
    equal bits; `start` says where it belongs.
    """

    values: array[float]  # one vector, or those of some positions one after the other
    num_vectors: int = 1
    start: int = 0  # the position of the first


class StepResult(NamedTuple):
    """The result of a step. `tokens` has one entry for each chunk; the rest is sparse."""

    step: int
    tokens: tuple[int, ...]  # the sampled token, NO_TOKEN for a chunk that samples nothing
    accepted: tuple[tuple[int, int], ...] = ()  # (slot, how many of its drafts were accepted)
    # (slot, drafts of its next tokens); they come too late if another step in flight computes it
    drafts: tuple[tuple[int, tuple[int, ...]], ...] = ()
    payloads: tuple[tuple[int, object], ...] = ()  # (slot, log-probabilities and the like)
    # (slot, why this sequence failed); its drafts that were accepted before may have no rows in its
    # own blocks
    errors: tuple[tuple[int, str], ...] = ()
    # (number, whether it has succeeded) of loads that have ended, of this step or an earlier one
    loaded: tuple[tuple[int, bool], ...] = ()
    # (slot, tokens behind the sampled one that no draw could change), only for a slot that no other
    # step in flight computes; it gets no drafts, since these may be cut off from its next chunk
    forced: tuple[tuple[int, tuple[int, ...]], ...] = ()
    impossible: tuple[int, ...] = ()  # slots with an error that is of what the request asks for
    # (slot, how probably each of its drafts is right with all before it), which never rises; drafts
    # without are sent as far as there is room
    chances: tuple[tuple[int, tuple[float, ...]], ...] = ()
    predicted: tuple[int, ...] = ()  # slots whose drafts are of the request's prediction
    ahead_seconds: float = 0.0  # of the step, that a second model has taken
    # (slot, form of its drafts), where these are a tree; each comes behind the one that it follows
    trees: tuple[tuple[int, DraftTree], ...] = ()
    # (slot, numbers of its accepted drafts), where these are not the first of its chunk's
    walks: tuple[tuple[int, tuple[int, ...]], ...] = ()
    # (slot, the state of its sampler behind the sampled token), of samplers that have one
    states: tuple[tuple[int, float], ...] = ()
