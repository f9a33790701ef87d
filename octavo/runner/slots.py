"""The worker's state of running sequences: a struct of arrays with one row for each slot.

A plan contains only differences; `free`, `open` and `grow` apply them, in the order that plan.py
promises. The part of a row after its known tokens is scratch space: drafts are written there to be
verified, and all ids in it are valid.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from octavo.backends.base import Ints, Longs
from octavo.core.config import CoreConfig
from octavo.core.plan import NewSlot
from octavo.core.sampling_params import LEAST_TEMPERATURE, LogitsProcessor
from octavo.runner.pooling import Pool
from octavo.runner.rules import Rules, SamplingError

# The kind of sampling of a slot. Rows of the first two kinds are sampled together.
GREEDY, WARM, SPECIAL = 0, 1, 2
NO_LOGPROBS = -2  # the request wants none


class SlotState:
    """The state of all running sequences of a worker."""

    def __init__(
        self, config: CoreConfig, vocabulary: int, processors: Mapping[str, LogitsProcessor]
    ) -> None:
        count, length = config.max_num_seqs, config.max_model_len
        blocks = -(-length // config.block_size)
        self.block_size = config.block_size
        self.vocabulary = vocabulary
        self._processors = processors
        # Zeroed memory costs nothing until it is written to. One position more than the longest
        # sequence, since an embedding of a prompt of that length also gives a token.
        self.tokens = np.zeros((count, length + 1), np.int32)
        self.num_known = np.zeros(count, np.int64)
        self.num_prompt = np.zeros(count, np.int64)
        self.tables = tuple(np.zeros((count, blocks), np.int32) for _ in config.groups)
        self.num_blocks = np.zeros(count, np.int64)

        self.kind = np.zeros(count, np.int8)
        self.temperature = np.ones(count, np.float64)  # 0: greedy
        self.min_p = np.zeros(count, np.float64)
        self.top_p = np.ones(count, np.float64)
        self.top_k = np.zeros(count, np.int64)
        self.cuts = np.zeros(count, np.bool_)  # whether any of the three has an effect
        self.seeds = np.zeros(count, np.int64)
        self.num_logprobs = np.full(count, NO_LOGPROBS, np.int64)
        self.num_prompt_logprobs = np.full(count, NO_LOGPROBS, np.int64)
        # Slots that need more than a token; usually there are none.
        self.rules: dict[int, Rules] = {}
        self.wants_logprobs: set[int] = set()
        self.wants_prompt_logprobs: set[int] = set()
        self.request_ids: list[str | None] = [None] * count  # None: the slot is empty
        self.pools: dict[int, Pool] = {}  # slots whose request wants an embedding
        self.failures: dict[int, str] = {}  # failed slots, with the reason

    # the differences of a plan

    def free(self, slot: int) -> None:
        """Remove a sequence, so that its slot can be used again."""
        assert self.request_ids[slot] is not None, f"slot {slot} is freed but not open"
        for table in self.tables:
            table[slot] = 0
        self.num_blocks[slot] = 0
        self.num_known[slot] = 0
        self.request_ids[slot] = None
        self.num_logprobs[slot] = self.num_prompt_logprobs[slot] = NO_LOGPROBS
        self.wants_logprobs.discard(slot)
        self.wants_prompt_logprobs.discard(slot)
        self.rules.pop(slot, None)
        self.pools.pop(slot, None)
        self.failures.pop(slot, None)

    def open(self, new: NewSlot) -> None:
        """Add a sequence with its tokens and parameters; an error in them fails it alone."""
        slot, sampling = new.slot, new.sampling
        assert self.request_ids[slot] is None, f"slot {slot} is opened while in use"
        self.request_ids[slot] = new.request_id
        tokens = np.array(new.tokens, np.int32)
        self.num_known[slot] = len(tokens)
        self.num_prompt[slot] = new.num_prompt
        for table, blocks in zip(self.tables, new.tables, strict=True):
            table[slot, : len(blocks)] = blocks
        self.num_blocks[slot] = len(new.tables[0])
        self.temperature[slot] = 0.0
        if not sampling.is_greedy:
            self.temperature[slot] = max(sampling.temperature, LEAST_TEMPERATURE)
        self.min_p[slot] = sampling.min_p
        self.top_p[slot] = sampling.top_p
        self.top_k[slot] = sampling.top_k
        self.cuts[slot] = sampling.min_p > 0 or sampling.top_p < 1 or sampling.top_k > 0
        self.seeds[slot] = sampling.seed or 0
        if sampling.logprobs is not None:
            self.num_logprobs[slot] = sampling.logprobs
            self.wants_logprobs.add(slot)
        # A sequence with output got the results of its prompt with its first token.
        if len(tokens) == new.num_prompt:
            if sampling.prompt_logprobs is not None:
                self.num_prompt_logprobs[slot] = sampling.prompt_logprobs
                self.wants_prompt_logprobs.add(slot)
            if sampling.pooling is not None:
                self.pools[slot] = Pool(sampling.pooling, new.num_prompt)
        try:
            self._check(new, tokens)
            if Rules.wanted(sampling):
                self.rules[slot] = Rules(new, self.vocabulary, self._processors)
        except ValueError as error:
            self.failures[slot] = str(error)
            tokens = np.zeros_like(tokens)
        self.tokens[slot, : len(tokens)] = tokens
        self.kind[slot] = self._kind(slot)

    def grow(self, slot: int, blocks: tuple[tuple[int, ...], ...]) -> None:
        """Append blocks to an open slot's tables: a tuple for each group."""
        begin = int(self.num_blocks[slot])
        end = begin + len(blocks[0])
        for table, part in zip(self.tables, blocks, strict=True):
            table[slot, begin:end] = part
        self.num_blocks[slot] = end

    def _check(self, new: NewSlot, tokens: Ints) -> None:
        """Refuse invalid ids, which would read memory of other sequences."""
        new.sampling.check_vocabulary(self.vocabulary)
        if tokens.min() < 0 or tokens.max() >= self.vocabulary:
            wrong = tokens[(tokens < 0) | (tokens >= self.vocabulary)][0]
            raise SamplingError(
                f"token id {wrong} is not in the vocabulary; ids go from 0 to {self.vocabulary - 1}"
            )
        if new.lora is not None:
            raise SamplingError(f"adapter {new.lora!r} is not loaded: this runner takes none")

    def _kind(self, slot: int) -> int:
        if slot in self.rules:
            return SPECIAL
        if self.temperature[slot] == 0.0:
            return GREEDY
        return SPECIAL if self.cuts[slot] else WARM

    # the growth of a sequence

    def append(self, slots: Longs, tokens: Ints) -> None:
        """Append one known token to each of these (different) slots."""
        self.tokens[slots, self.num_known[slots]] = tokens
        self.num_known[slots] += 1
        if self.rules:
            for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True):
                if slot in self.rules:
                    self.rules[slot].add(token)

    def write_drafts(self, slot: int, drafts: tuple[int, ...]) -> None:
        """Write drafts after the known tokens, for one forward pass."""
        known = int(self.num_known[slot])
        self.tokens[slot, known : known + len(drafts)] = drafts

    def prompt(self, slot: int) -> Ints:
        return self.tokens[slot, : self.num_prompt[slot]]

    def known(self, slot: int) -> Ints:
        return self.tokens[slot, : self.num_known[slot]]

    def output(self, slot: int) -> Ints:
        return self.tokens[slot, self.num_prompt[slot] : self.num_known[slot]]
