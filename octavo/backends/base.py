"""The Backend protocol: the interface between the runner and the engine that computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.backends.stored_rows import StoredRows
from octavo.layers import CausalLM, Module, Value

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

FLOAT_TYPES = ("F32", "F16", "BF16")  # types that are not quantised
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}  # by the names of dtypes
NO_ROWS = np.zeros(0, np.int32)
Longs = NDArray[np.int64]
Doubles = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The layout of the KV cache: groups of layers that share block tables.

    A block belongs to one group at a time, so layer i of every group uses the i-th buffer.
    """

    windows: tuple[int | None, ...]  # a group
    num_buffers: int  # layers of the largest group
    kv_heads: int
    head_dim: int

    def block_bytes(self, block_size: int, element_bytes: int, scale_bytes: int = 0) -> int:
        """Return the size of a block's keys, values and scales in all buffers."""
        vectors = 2 * self.num_buffers * block_size * self.kv_heads
        return vectors * (self.head_dim * element_bytes + scale_bytes)


@dataclass(frozen=True, slots=True)
class StepSize:
    """The sizes of the largest possible step."""

    rows: int
    wanted_rows: int  # rows among them whose logits are wanted
    sequences: int
    positions: int  # of the longest sequence
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int


class HostBatch(NamedTuple):
    """The input of one forward pass on the host; sequence s has rows row_starts[s:s+2].

    The arrays belong to the runner, which changes them for the next pass.
    """

    token_ids: Ints  # [rows]
    positions: Ints  # [rows]
    row_starts: Ints  # [sequences + 1]
    tables: tuple[Ints, ...]  # for each group [sequences, blocks], padded with the null block
    logits_rows: Ints  # rows whose logits are wanted
    # Rows whose last hidden state is wanted.
    hidden_rows: Ints = NO_ROWS


class ForwardResult(NamedTuple):
    """The results of one pass, in the order of the wanted rows.

    The arrays are valid until the backend's next `forward`, which may overwrite them. A caller that
    needs them longer copies them.
    """

    logits: Floats  # [logits_rows, vocabulary]
    hidden: Floats  # [hidden_rows, hidden size]: the input of the head, after the last norm


@dataclass(frozen=True, slots=True)
class TensorSize:
    """The size of a tensor that a layer will hold, known before the tensor is read."""

    type: str  # GGUF's name for the rows that will be packed; F32 where they are computed first
    rows: int
    inputs: int
    is_matrix: bool  # used in products or lookups
    is_embedding: bool


@dataclass(frozen=True, slots=True)
class Draws:
    """The sampling parameters of each slot, in arrays that the runner changes."""

    temperatures: Doubles  # 0: greedy
    min_p: Doubles  # 0: none
    top_p: Doubles  # 1: none
    top_k: Longs  # 0 or less: none
    seeds: Longs
    num_prompt: Longs
    num_known: Longs  # tokens of the prompt and of the output so far


class RowLogprobs(NamedTuple):
    """Log-probabilities of some tokens of each row of logits."""

    token_ids: Ints  # [rows, 1 + count]: the given token, then the most likely ones
    logprobs: Floats  # [rows, 1 + count]
    ranks: Longs  # [rows]: of the given token; 0 where a logit is not finite


class SamplingKernel(Protocol):
    """A backend's own sampler.

    It draws exactly the tokens that octavo/runner/sampler.py draws for slots without rules, and
    computes what octavo/runner/logprobs.py computes, except for the last bit of a float.
    """

    def draw(self, logits: Floats, rows: Longs, slots: Longs, draws: Draws) -> tuple[Ints, bool]:
        """Return a token for each slot, drawn from its row, and whether all rows were finite.

        The token is -1 where a logit is not finite.
        """

    def append(self, slots: Longs, tokens: Ints, known: Ints, num_known: Longs) -> None:
        """Append a token to the known tokens of each of these slots, and count it."""

    def row_logprobs(self, logits: Floats, rows: Longs, tokens: Ints, count: int) -> RowLogprobs:
        """Return log-probabilities of `tokens` and of the `count` most likely; ties by token id."""


class Backend(Protocol):
    """An engine that computes forward passes over its paged KV cache."""

    @property
    def sampling(self) -> SamplingKernel | None:
        """The backend's own sampler; None if it has none."""

    @property
    def weight_bytes(self) -> int:
        """The memory that the weights take, in bytes."""

    def parameter(self, array: NDArray[Any]) -> Value:
        """Return a weight that is not a matrix in this backend's own form."""

    def matrix(self, parts: Sequence[StoredRows], module: Module) -> Value:
        """Stack the parts of a matrix for products or lookups."""

    def experts(self, matrices: Sequence[Sequence[StoredRows]], module: Module) -> Value:
        """Stack the matrices of all experts, each given by its parts."""

    def prepare(self, model: CausalLM, layout: KVLayout, num_blocks: int, block_size: int) -> None:
        """Take a bound model and make the cache. Weights may still be loading."""

    def settle(self) -> None:
        """Wait until all weights are loaded, so that the first forward need not wait."""

    def copy_blocks(self, pairs: tuple[tuple[int, int], ...]) -> None:
        """Copy blocks (source, destination) in every buffer, in this order."""

    def forward(self, batch: HostBatch) -> ForwardResult:
        """Write the batch's KV; return logits and hidden states of the wanted rows."""
