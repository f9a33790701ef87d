"""The worker's bookkeeping of running sequences: a struct of arrays with one row for each slot.

A plan contains only differences; `free`, `open` and `grow` apply them when the plan is submitted,
in the order that plan.py promises. Whatever follows a slot's drawn tokens (the last token, counts,
sums of hidden states) is the backend's, since the host may learn of them only steps later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from octavo.backends.base import Ints
from octavo.backends.step import SlotSampling
from octavo.core.config import CoreConfig
from octavo.core.plan import NewSlot
from octavo.core.pooling import Pooling, PoolingKind
from octavo.core.sampling_params import LogitsProcessor
from octavo.runner.slot_sampling import slot_sampling


class SlotState:
    """The state of all running sequences of a worker."""

    def __init__(
        self,
        config: CoreConfig,
        vocabulary: int,
        processors: Mapping[str, LogitsProcessor],
        *,
        has_adapters: bool = False,
    ) -> None:
        count, length = config.max_num_seqs, config.max_model_len
        blocks = -(-length // config.block_size)
        self.block_size = config.block_size
        self.vocabulary = vocabulary
        self._processors = processors
        self._has_adapters = has_adapters
        # Zeroed memory costs nothing until it is written to. One position more than the longest
        # sequence, since an embedding of a prompt of that length also gives a token.
        self.tokens = np.zeros((count, length + 1), np.int32)
        # Tokens that were known at the opening, or up to the last one that was forced.
        self.num_opened = np.zeros(count, np.int64)
        # Known tokens: those, and the output that has been collected since where a proposer needs
        # it. Without one nothing does, and `num_known` stays `num_opened`.
        self.num_known = [0] * count  # a list: one is read and written at a time
        self.num_prompt = np.zeros(count, np.int64)
        self.tables = tuple(np.zeros((count, blocks), np.int32) for _ in config.groups)
        # Nothing is kept from step to step: each gives its sequences blocks of its own.
        self.keeps_nothing = all(group.kind == "none" for group in config.groups)
        self.num_blocks = np.zeros(count, np.int64)
        self.request_ids: list[str | None] = [None] * count  # None: the slot is empty
        # Slots that need more than tokens; usually there are none.
        self.prompt_logprobs: dict[int, int] = {}  # how many for each position
        self.pooling: dict[int, Pooling] = {}
        self.pooled: dict[int, range] = {}  # positions whose hidden states are pooled
        self.second_from: dict[int, int] = {}  # where the second text of a pair begins
        self.drawless: dict[int, None] = {}  # slots that end with their prompts, without a token
        self.adapters: dict[int, int] = {}  # the slots of their adapters, where they have one
        self.failures: dict[int, str] = {}  # failed slots, with the reason
        self.impossible: set[int] = set()  # those whose request asks for it

    def free(self, slot: int) -> None:
        """Remove a sequence, so that its slot can be used again."""
        assert self.request_ids[slot] is not None, f"slot {slot} is freed but not open"
        for table in self.tables:
            table[slot] = 0
        self.num_blocks[slot] = 0
        self.num_opened[slot] = self.num_known[slot] = 0
        self.request_ids[slot] = None
        self.prompt_logprobs.pop(slot, None)
        self.pooling.pop(slot, None)
        self.pooled.pop(slot, None)
        self.second_from.pop(slot, None)
        self.adapters.pop(slot, None)
        self.drawless.pop(slot, None)
        self.failures.pop(slot, None)
        self.impossible.discard(slot)

    def open(self, new: NewSlot) -> SlotSampling:
        """Add a sequence, and return how its tokens are drawn.

        An error in its parameters fails it alone; until it is freed, it has harmless parameters.
        """
        slot, sampling = new.slot, new.sampling
        assert self.request_ids[slot] is None, f"slot {slot} is opened while in use"
        self.request_ids[slot] = new.request_id
        tokens = np.array(new.tokens, np.int32)
        for table, blocks in zip(self.tables, new.tables, strict=True):
            table[slot, : len(blocks)] = blocks
        self.num_blocks[slot] = len(new.tables[0])
        # A sequence with output got the results of its prompt with its first token.
        if len(tokens) == new.num_prompt:
            if sampling.prompt_logprobs is not None:
                self.prompt_logprobs[slot] = sampling.prompt_logprobs
            if sampling.pooling is not None:
                self.pooling[slot] = sampling.pooling
                if sampling.pooling.second_from:
                    self.second_from[slot] = sampling.pooling.second_from
                self.pooled[slot] = _positions(sampling.pooling.kind, new.num_prompt)
        if sampling.is_about_prompt:
            self.drawless[slot] = None
        try:
            if new.lora is not None and not self._has_adapters:
                raise ValueError(f"adapter {new.lora!r} is not loaded: this engine takes none")
            drawn = slot_sampling(new, tokens, self.vocabulary, self._processors)
        except ValueError as error:
            self.failures[slot] = str(error)
            drawn = SlotSampling(np.zeros_like(tokens), new.num_prompt)
        else:
            if new.lora is not None:
                self.adapters[slot] = new.adapter
        self.tokens[slot, : len(tokens)] = drawn.tokens
        self.num_opened[slot] = self.num_known[slot] = len(tokens)
        self.num_prompt[slot] = new.num_prompt
        return drawn

    def fail(self, slot: int, message: str, *, is_impossible: bool = False) -> None:
        """Note why a slot has failed, unless it has before."""
        if slot not in self.failures:
            self.failures[slot] = message
            if is_impossible:
                self.impossible.add(slot)

    def grow(self, slot: int, blocks: tuple[tuple[int, ...], ...]) -> None:
        """Append blocks to an open slot's tables: a tuple for each group."""
        begin = int(self.num_blocks[slot])
        end = begin + len(blocks[0])
        for table, part in zip(self.tables, blocks, strict=True):
            table[slot, begin:end] = part
        self.num_blocks[slot] = end

    def append(self, slot: int, tokens: Sequence[int]) -> None:
        """Append drawn tokens to the known ones of a slot."""
        begin = self.num_known[slot]
        end = begin + len(tokens)
        if end - begin == 1:  # as mostly; numpy need not make an array of it
            self.tokens[slot, begin] = tokens[0]
        else:
            self.tokens[slot, begin:end] = tokens
        self.num_known[slot] = end

    def room_behind(self, position: int) -> int:
        """Return for how many tokens a sequence has room from this position on."""
        return int(self.tokens.shape[1]) - position

    def set_known(self, slot: int, position: int, tokens: Sequence[int]) -> None:
        """Write the tokens from a position on, so that the next chunks compute these.

        What was drawn before may be unknown here, and has been computed.
        """
        end = position + len(tokens)
        self.tokens[slot, position:end] = tokens
        self.num_opened[slot] = end

    def known(self, slot: int) -> Ints:
        return self.tokens[slot, : self.num_known[slot]]


def _positions(kind: PoolingKind, num_prompt: int) -> range:
    """Return the positions of a prompt whose hidden states make its vector or vectors."""
    first, last = 0, num_prompt - 1
    return {
        "last": range(last, num_prompt),
        "cls": range(first, first + 1),
        "mean": range(num_prompt),
        "all": range(num_prompt),
    }[kind]
