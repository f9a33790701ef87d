"""The memory of a model, from its headers: for itself, and for each sequence."""

from __future__ import annotations

from msgspec import Struct

from octavo.core.config import KVGroup, blocks_per_page
from octavo.observe.stored_bytes import StoredBytes

# Left for other processes when the size of the KV cache is not set.
HEADROOM_BYTES = 512 << 20
RANK_BYTES = 48 << 20  # of a further rank: Python and its modules, biases and norms
MAX_SPARE_BYTES = 64 << 20  # that a loader keeps for the next file, of an adapter in most cases


class MemoryBill(Struct, frozen=True):
    """The memory that an engine needs, computed from headers without reading a weight."""

    stored: tuple[StoredBytes, ...]
    weights_bytes: int  # in the form that the backend keeps
    step_bytes: int  # for the temporary arrays of the largest step
    grammar_bytes: int  # for the grammars of all texts with a shape, at most
    block_bytes: int  # of one KV block of the largest group: of a page of the cache
    block_size: int  # tokens per block
    groups: tuple[KVGroup, ...]  # of layers
    chunk_tokens: int  # the most tokens of a sequence in one step
    adapter_bytes: int = 0  # in memory and in slots, and kept for the next one, at most
    resident_adapter_bytes: int = 0  # of them, those that requests can be given
    drafter_bytes: int = 0  # the weights of a second model, which drafts
    rank_bytes: int = 0  # what further ranks have of their own, beside weights

    @property
    def blocks_per_page(self) -> tuple[int, ...]:
        """The number of blocks of each group of layers in a page."""
        return blocks_per_page(self.groups)

    @property
    def fixed_bytes(self) -> int:
        """The memory needed before any sequence runs."""
        return self.all_weights_bytes + self.rank_bytes + self.step_bytes + self.beside_bytes

    @property
    def all_weights_bytes(self) -> int:
        """The memory of the weights of all models."""
        return self.weights_bytes + self.drafter_bytes

    @property
    def beside_bytes(self) -> int:
        """The memory of what requests bring along: grammars, adapters."""
        return self.grammar_bytes + self.adapter_bytes

    def with_blocks(self, num_blocks: int) -> int:
        """Return the memory needed with a KV cache of `num_blocks` blocks."""
        return self.fixed_bytes + num_blocks * self.block_bytes

    @property
    def stored_bytes(self) -> int:
        """The size of all tensors in the files."""
        return sum(each.num_bytes for each in self.stored)

    @property
    def token_bytes(self) -> float:
        """The KV memory of one token while every layer keeps it; a state does not grow by it."""
        groups = zip(self.groups, self.blocks_per_page, strict=True)
        num_pages = sum(1 / per_page for group, per_page in groups if group.kind != "state")
        return num_pages * self.block_bytes / self.block_size

    def num_blocks(self, num_tokens: int) -> int:
        """Return the most pages of a sequence; blocks that are not read any more are freed."""
        whole, size = -(-num_tokens // self.block_size), self.block_size
        return sum(
            -(-group.most_blocks(whole, size, self.chunk_tokens) // per_page)
            for group, per_page in zip(self.groups, self.blocks_per_page, strict=True)
        )

    def sequence_bytes(self, num_tokens: int) -> int:
        """Return the KV memory of a sequence of `num_tokens` tokens."""
        return self.num_blocks(num_tokens) * self.block_bytes

    def room_for_kv(self, free_bytes: int) -> int:
        """Return what free memory leaves for KV; negative if the model does not fit."""
        return free_bytes - self.fixed_bytes - HEADROOM_BYTES

    def num_sequences(self, num_tokens: int, kv_bytes: int) -> int:
        """Return how many sequences of this length fit in the KV cache at once."""
        usable = kv_bytes // self.block_bytes - 1  # one is the null block
        return max(usable, 0) // max(self.num_blocks(num_tokens), 1)


def difference(predicted: int, measured: int) -> str:
    """Return the deviation from a prediction, such as `+1.2 %`."""
    if predicted <= 0:
        return "nothing was predicted"
    return f"{(measured - predicted) / predicted * 100:+.1f} %"
