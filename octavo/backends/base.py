"""The Backend protocol: what the runner asks of whatever computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.layers import CausalLM, Module, Ops, Value

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

FLOAT_TYPES = ("F32", "F16", "BF16")  # stored as they are: what is not quantised
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}  # by the names of dtypes
NO_ROWS = np.zeros(0, np.int32)
Longs = NDArray[np.int64]
Doubles = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class KVLayout:
    """What the layers need cached: groups of layers that share block tables.

    A block belongs to one group at a time, so layer i of every group uses the i-th buffer.
    """

    windows: tuple[int | None, ...]  # a group
    num_buffers: int  # layers of the largest group
    kv_heads: int
    head_dim: int

    def block_bytes(self, block_size: int, element_bytes: int, scale_bytes: int = 0) -> int:
        """Keys and values of one block, in all buffers, and a scale for each token's head."""
        vectors = 2 * self.num_buffers * block_size * self.kv_heads
        return vectors * (self.head_dim * element_bytes + scale_bytes)


@dataclass(frozen=True, slots=True)
class StepSize:
    """The largest step there can be, and the widths of what passes through it."""

    rows: int
    wanted_rows: int  # of these, rows whose logits are wanted
    sequences: int
    positions: int  # of the longest sequence
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int


class HostBatch(NamedTuple):
    """One forward pass, in arrays on the host; sequence s has rows row_starts[s:s+2].

    The arrays are the runner's: it changes them for the next pass.
    """

    token_ids: Ints  # [rows]
    positions: Ints  # [rows]
    row_starts: Ints  # [sequences + 1]
    tables: tuple[Ints, ...]  # a group: [sequences, blocks], padded with the null block
    logits_rows: Ints  # rows whose logits are wanted
    # Rows whose last hidden state is wanted.
    hidden_rows: Ints = NO_ROWS


class ForwardResult(NamedTuple):
    """The results of one pass, in the order of the wanted rows.

    The arrays are valid until the backend's next `forward`, which may overwrite them. A caller that
    needs them longer copies them.
    """

    logits: Floats  # [logits_rows, vocabulary]
    hidden: Floats  # [hidden_rows, hidden size]: what the head reads, the last norm behind it


@dataclass(frozen=True, slots=True)
class TensorSize:
    """A tensor that a layer will hold, before anything of it is read."""

    type: str  # as GGUF calls it: of the rows that will be packed, F32 where they are made first
    rows: int
    inputs: int
    is_matrix: bool  # it is multiplied by, or looked up in
    is_embedding: bool


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows of a matrix as a file has them: the i-th is `rows[order[i]]`."""

    type: str  # as GGUF calls it: F32, BF16, Q4_K …
    inputs: int
    rows: NDArray[np.uint8]  # [stored rows, bytes of a row], contiguous
    order: NDArray[np.int64] | None  # None: as they are
    is_file: bool  # they lie in a mapped file, whose pages can be had again
    decode: Callable[[NDArray[np.uint8]], Floats]  # stored rows → their values

    @classmethod
    def of(cls, floats: Floats) -> StoredRows:
        """Rows that are in memory already."""
        floats = np.ascontiguousarray(floats, np.float32)
        rows = floats.view(np.uint8)
        return cls("F32", floats.shape[1], rows, None, False, lambda rows: rows.view(np.float32))

    def __len__(self) -> int:
        return len(self.rows if self.order is None else self.order)

    def cut(self, start: int, stop: int) -> StoredRows:
        """Some of the rows."""
        if self.order is not None:
            return replace(self, order=self.order[start:stop])
        return replace(self, rows=self.rows[start:stop])

    def reordered(self, order: NDArray[np.int64]) -> StoredRows:
        """Row i becomes what row order[i] was."""
        return replace(self, order=order if self.order is None else self.order[order])

    def floats(self) -> Floats:
        """Their values."""
        values = self.decode(self.rows)
        return values if self.order is None else values[self.order]

    def addresses(self) -> NDArray[np.uint64]:
        """Where each row begins in memory."""
        order = np.arange(len(self.rows)) if self.order is None else self.order
        start = np.uint64(self.rows.ctypes.data)
        return start + order.astype(np.uint64) * np.uint64(self.rows.shape[1])


@dataclass(frozen=True, slots=True)
class Draws:
    """How each slot is sampled: arrays of the runner's own, which change as sequences do."""

    temperatures: Doubles  # 0: greedy
    min_p: Doubles  # 0: none
    top_p: Doubles  # 1: none
    top_k: Longs  # 0 or less: none
    seeds: Longs
    num_prompt: Longs
    num_known: Longs  # the prompt, and what was generated before


class Told(NamedTuple):
    """What is told of rows of logits, a row for each."""

    token_ids: Ints  # [rows, 1 + count]: the token that was asked about, then the likeliest
    logprobs: Floats  # of each of these
    ranks: Longs  # of the token that was asked about; 0 where a logit is not finite


class SamplingKernel(Protocol):
    """Draws the very tokens that octavo/runner/sampler.py draws, where no rule is in the way.

    And tells what octavo/runner/logprobs.py tells, but for the last bit of a float.
    """

    def draw(self, logits: Floats, rows: Longs, slots: Longs, draws: Draws) -> tuple[Ints, bool]:
        """A token for each slot from the row beside it, and whether there is one for each.

        It is -1 where a logit is not finite.
        """

    def append(self, slots: Longs, tokens: Ints, known: Ints, num_known: Longs) -> None:
        """Write a token behind those that each of these slots knows, and count it."""

    def tell(self, logits: Floats, rows: Longs, tokens: Ints, count: int) -> Told:
        """Of these rows: a token of each, and the `count` likeliest; ties go by token id."""


class Backend(Protocol):
    """Computes forward passes over a paged KV cache that it holds."""

    @property
    def ops(self) -> Ops:
        """The operations, for the layers."""

    @property
    def sampling(self) -> SamplingKernel | None:
        """Its own way to draw tokens, if it has one."""

    @property
    def weight_bytes(self) -> int:
        """What the weights that it has been given take in memory."""

    def parameter(self, array: NDArray[Any]) -> Value:
        """A weight that is no matrix, as this backend keeps it."""

    def matrix(self, parts: Sequence[StoredRows], module: Module) -> Value:
        """A matrix that a layer multiplies with or looks rows up in: its parts, stacked."""

    def experts(self, matrices: Sequence[Sequence[StoredRows]], module: Module) -> Value:
        """The same for each expert."""

    def prepare(self, model: CausalLM, layout: KVLayout, num_blocks: int, block_size: int) -> None:
        """Take a bound model and set the cache up. Weights may still be on their way."""

    def settle(self) -> None:
        """Return when all weights are where they belong; the first forward would wait for them."""

    def copy_blocks(self, pairs: tuple[tuple[int, int], ...]) -> None:
        """Copy blocks (source, destination) in every buffer, in this order."""

    def forward(self, batch: HostBatch) -> ForwardResult:
        """Write the batch's KV; logits and hidden states of the rows that ask for them."""
