"""The memory of a model, from its headers: for itself, and for each sequence."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

# Left for other processes when the size of the KV cache is not set.
HEADROOM_BYTES = 512 << 20


class StoredBytes(Struct, frozen=True):
    """The tensors of a checkpoint that have one storage type."""

    type: str
    num_tensors: int
    num_bytes: int


class MemoryBill(Struct, frozen=True):
    """The memory that an engine needs, computed from headers without reading a weight."""

    stored: tuple[StoredBytes, ...]
    weights_bytes: int  # in the form that the backend keeps
    step_bytes: int  # for the temporary arrays of the largest step
    grammar_bytes: int  # for the grammars of all texts with a shape, at most
    block_bytes: int  # of one KV block of the largest group: of a page of the cache
    block_size: int  # tokens per block
    windows: tuple[int | None, ...]  # for each group of layers: how many tokens back it reads
    chunk_tokens: int  # the most tokens of a sequence in one step
    blocks_per_page: tuple[int, ...]  # for each group of layers

    @property
    def fixed_bytes(self) -> int:
        """The memory needed before any sequence runs."""
        return self.weights_bytes + self.step_bytes + self.grammar_bytes

    def with_blocks(self, num_blocks: int) -> int:
        """Return the memory needed with a KV cache of `num_blocks` blocks."""
        return self.fixed_bytes + num_blocks * self.block_bytes

    @property
    def stored_bytes(self) -> int:
        """The size of all tensors in the files."""
        return sum(each.num_bytes for each in self.stored)

    @property
    def token_bytes(self) -> float:
        """The KV memory of one token while every layer keeps it."""
        num_pages = sum(1 / per_page for per_page in self.blocks_per_page)
        return num_pages * self.block_bytes / self.block_size

    def num_blocks(self, num_tokens: int) -> int:
        """Return the pages of a sequence; blocks that have left a window are freed."""
        whole = -(-num_tokens // self.block_size)
        num_pages = 0
        for window, per_page in zip(self.windows, self.blocks_per_page, strict=True):
            held = whole
            if window is not None:
                held = min(whole, -(-(window + self.chunk_tokens) // self.block_size) + 1)
            num_pages += -(-held // per_page)
        return num_pages

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


def by_type(tensors: Sequence[tuple[str, int]]) -> tuple[StoredBytes, ...]:
    """Add up (storage type, bytes) of each tensor by type, the largest type first."""
    found: dict[str, tuple[int, int]] = {}
    for name, num_bytes in tensors:
        count, total = found.get(name, (0, 0))
        found[name] = count + 1, total + num_bytes
    rows = (StoredBytes(name, count, total) for name, (count, total) in found.items())
    return tuple(sorted(rows, key=lambda row: (-row.num_bytes, row.type)))
