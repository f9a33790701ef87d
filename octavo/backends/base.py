"""The Backend protocol: what the runner asks of whatever computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.layers import CausalLM, Ops, Value

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class KVLayout:
    """What the layers need cached: groups of layers that share block tables.

    A block belongs to one group at a time, so layer i of every group uses the i-th buffer.
    """

    windows: tuple[int | None, ...]  # a group
    num_buffers: int  # layers of the largest group
    kv_heads: int
    head_dim: int

    def block_bytes(self, block_size: int, element_bytes: int) -> int:
        """Keys and values of one block, in all buffers."""
        return 2 * self.num_buffers * block_size * self.kv_heads * self.head_dim * element_bytes


@dataclass(frozen=True, slots=True)
class StepSize:
    """The largest step there can be, and the widths of what passes through it."""

    rows: int
    sequences: int
    positions: int  # of the longest sequence
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int


@dataclass(frozen=True, slots=True)
class HostBatch:
    """One forward pass, in arrays on the host; sequence s has rows row_starts[s:s+2]."""

    token_ids: Ints  # [rows]
    positions: Ints  # [rows]
    row_starts: Ints  # [sequences + 1]
    tables: tuple[Ints, ...]  # a group: [sequences, blocks], padded with the null block
    logits_rows: Ints  # rows whose logits are wanted
    # Rows whose last hidden state is wanted.
    hidden_rows: Ints = field(default_factory=lambda: np.zeros(0, np.int32))


class ForwardResult(NamedTuple):
    """What one pass gives, in the order of the rows that were asked for."""

    logits: Floats  # [logits_rows, vocabulary]
    hidden: Floats  # [hidden_rows, hidden size]: what the head reads, the last norm behind it


class Backend(Protocol):
    """Computes forward passes over a paged KV cache that it holds."""

    @property
    def ops(self) -> Ops:
        """The operations, for the layers."""

    def parameter(self, array: NDArray[Any]) -> Value:
        """A weight as this backend keeps it."""

    def prepare(self, model: CausalLM, layout: KVLayout, num_blocks: int, block_size: int) -> None:
        """Take a bound model and set the cache up."""

    def copy_blocks(self, pairs: tuple[tuple[int, int], ...]) -> None:
        """Copy blocks (source, destination) in every buffer, in this order."""

    def forward(self, batch: HostBatch) -> ForwardResult:
        """Write the batch's KV; logits and hidden states of the rows that ask for them."""
