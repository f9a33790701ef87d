"""A model's memory as a bill: what it takes before any sequence runs, and what each costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Left for everybody else on the machine where the KV cache's size is not given.
HEADROOM_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class Stored:
    """Tensors of one storage type, as they are in the checkpoint."""

    type: str
    num_tensors: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryBill:
    """What an engine takes, worked out from headers alone: no weight is read for it."""

    stored: tuple[Stored, ...]
    weights_bytes: int  # as the backend keeps them
    step_bytes: int  # for what the largest step needs while it runs
    block_bytes: int  # a KV block, in all its buffers
    block_size: int  # tokens a block
    windows: tuple[int | None, ...]  # of each group of layers: how far back it reads
    chunk_tokens: int  # most tokens of a sequence that one step computes

    @property
    def fixed_bytes(self) -> int:
        """What it takes before any sequence runs."""
        return self.weights_bytes + self.step_bytes

    def with_blocks(self, num_blocks: int) -> int:
        """What it takes with a KV cache of so many blocks."""
        return self.fixed_bytes + num_blocks * self.block_bytes

    @property
    def stored_bytes(self) -> int:
        """The tensors in the files."""
        return sum(each.num_bytes for each in self.stored)

    @property
    def token_bytes(self) -> float:
        """KV of one token as long as every layer keeps it."""
        return len(self.windows) * self.block_bytes / self.block_size

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks that a sequence of so many tokens holds; what has left a window is given back."""
        whole = -(-num_tokens // self.block_size)
        return sum(
            whole
            if window is None
            else min(whole, -(-(window + self.chunk_tokens) // self.block_size) + 1)
            for window in self.windows
        )

    def sequence_bytes(self, num_tokens: int) -> int:
        """KV of a sequence of so many tokens."""
        return self.num_blocks(num_tokens) * self.block_bytes

    def room_for_kv(self, free_bytes: int) -> int:
        """What is left for KV of so much free memory; below zero if the model does not fit."""
        return free_bytes - self.fixed_bytes - HEADROOM_BYTES

    def num_sequences(self, num_tokens: int, kv_bytes: int) -> int:
        """How many sequences of this length such a KV cache holds at once."""
        usable = kv_bytes // self.block_bytes - 1  # one is the null block
        return max(usable, 0) // max(self.num_blocks(num_tokens), 1)


def difference(predicted: int, measured: int) -> str:
    """`+1.2 %`: how far off a prediction was."""
    if predicted <= 0:
        return "nothing was predicted"
    return f"{(measured - predicted) / predicted * 100:+.1f} %"


def by_type(tensors: Sequence[tuple[str, int]]) -> tuple[Stored, ...]:
    """(storage type, bytes) of each tensor, added up; the largest first."""
    found: dict[str, tuple[int, int]] = {}
    for name, num_bytes in tensors:
        count, total = found.get(name, (0, 0))
        found[name] = count + 1, total + num_bytes
    rows = (Stored(name, count, total) for name, (count, total) in found.items())
    return tuple(sorted(rows, key=lambda row: (-row.num_bytes, row.type)))
