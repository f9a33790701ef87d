"""The worker's memory of running sequences: a struct of arrays, one row a slot.

A plan tells only differences; `forget`, `open` and `grow` apply them, in the order plan.py
promises. Behind a row's known tokens its memory is scratch: drafts are written there to be
verified, and every id in it is always a valid one.
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

# How a slot is sampled. Rows of the first two kinds are done all together.
GREEDY, WARM, SPECIAL = 0, 1, 2
UNASKED = -2  # no log-probabilities


class SlotState:
    """Everything a worker knows of the sequences that run."""

    def __init__(
        self, config: CoreConfig, vocabulary: int, processors: Mapping[str, LogitsProcessor]
    ) -> None:
        count, length = config.max_num_seqs, config.max_model_len
        blocks = -(-length // config.block_size)
        self.block_size = config.block_size
        self.vocabulary = vocabulary
        self._processors = processors
        # Zeroed memory costs nothing until it is written to.
        # One more than the longest sequence: an embedding of so long a prompt gives a token, too.
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
        self.cuts = np.zeros(count, np.bool_)  # whether any of the three does anything
        self.seeds = np.zeros(count, np.int64)
        self.num_logprobs = np.full(count, UNASKED, np.int64)
        self.num_prompt_logprobs = np.full(count, UNASKED, np.int64)
        # Slots of which more is wanted than a token; mostly there are none.
        self.rules: dict[int, Rules] = {}
        self.asking: set[int] = set()  # they are told log-probabilities
        self.asking_of_prompt: set[int] = set()  # the same, of their prompts
        self.request_ids: list[str | None] = [None] * count  # None: the slot is empty
        self.pools: dict[int, Pool] = {}  # slots whose prompt an embedding is made of
        self.failures: dict[int, str] = {}  # slots that can only fail, and why

    # a plan's differences

    def forget(self, slot: int) -> None:
        """The sequence is gone; somebody else may be next."""
        assert self.request_ids[slot] is not None, f"slot {slot} freed, but not open"
        for table in self.tables:
            table[slot] = 0
        self.num_blocks[slot] = 0
        self.num_known[slot] = 0
        self.request_ids[slot] = None
        self.num_logprobs[slot] = self.num_prompt_logprobs[slot] = UNASKED
        self.asking.discard(slot)
        self.asking_of_prompt.discard(slot)
        self.rules.pop(slot, None)
        self.pools.pop(slot, None)
        self.failures.pop(slot, None)

    def open(self, new: NewSlot) -> None:
        """A sequence begins, with all that is known of it. What is wrong with it fails it alone."""
        slot, sampling = new.slot, new.sampling
        assert self.request_ids[slot] is None, f"slot {slot} opened while in use"
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
            self.asking.add(slot)
        # Whoever has output already has been told of the whole prompt, with its first token.
        if len(tokens) == new.num_prompt:
            if sampling.prompt_logprobs is not None:
                self.num_prompt_logprobs[slot] = sampling.prompt_logprobs
                self.asking_of_prompt.add(slot)
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
        """Blocks at the end of a known slot's tables: a tuple a group."""
        begin = int(self.num_blocks[slot])
        end = begin + len(blocks[0])
        for table, part in zip(self.tables, blocks, strict=True):
            table[slot, begin:end] = part
        self.num_blocks[slot] = end

    def _check(self, new: NewSlot, tokens: Ints) -> None:
        """Ids that do not exist would read somebody else's memory."""
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

    # a sequence's growth

    def append(self, slots: Longs, tokens: Ints) -> None:
        """Each of these (different) slots knows one more token."""
        self.tokens[slots, self.num_known[slots]] = tokens
        self.num_known[slots] += 1
        if self.rules:
            for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True):
                if slot in self.rules:
                    self.rules[slot].add(token)

    def write_drafts(self, slot: int, drafts: tuple[int, ...]) -> None:
        """Put guesses behind the known tokens, for one forward pass."""
        known = int(self.num_known[slot])
        self.tokens[slot, known : known + len(drafts)] = drafts

    def prompt(self, slot: int) -> Ints:
        """Its prompt's tokens."""
        return self.tokens[slot, : self.num_prompt[slot]]

    def output(self, slot: int) -> Ints:
        """What it has generated."""
        return self.tokens[slot, self.num_prompt[slot] : self.num_known[slot]]
