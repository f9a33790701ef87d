"""The Backend protocol: how a model gets its weights and its cache, and runs steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.backends.stored_rows import StoredRows
from octavo.layers import CausalLM, Module, Value

if TYPE_CHECKING:
    from octavo.backends.step import Draws, HostBatch, Pending

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Longs = NDArray[np.int64]
Doubles = NDArray[np.float64]

FLOAT_TYPES = ("F32", "F16", "BF16")  # types that are not quantised
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}  # by the names of dtypes


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


class Footprint(Protocol):
    """The memory that a backend will take for a model, known before anything is loaded."""

    @property
    def most_kv_bytes(self) -> int:
        """The largest KV cache that is worth choosing automatically."""

    def weight_bytes(self, tensor: TensorSize) -> int:
        """Return the bytes of a tensor in the form that the backend keeps."""

    def block_bytes(self, layout: KVLayout, block_size: int) -> int:
        """Return the bytes of a KV block, in all its buffers."""

    def step_bytes(self, size: StepSize) -> int:
        """Estimate the memory of the largest step while it runs."""


class Backend(Protocol):
    """An engine that computes steps over its paged KV cache and draws their tokens.

    The calls of a start come in this order: weights (`parameter`, `matrix`, `experts`), `prepare`,
    `settle`, `reserve`, `make_cache`, and then steps.
    """

    @property
    def weight_bytes(self) -> int:
        """The memory that the weights take, in bytes."""

    def parameter(self, array: NDArray[Any]) -> Value:
        """Return a weight that is not a matrix in this backend's own form."""

    def matrix(self, parts: Sequence[StoredRows], module: Module) -> Value:
        """Stack the parts of a matrix for products or lookups."""

    def experts(self, matrices: Sequence[Sequence[StoredRows]], module: Module) -> Value:
        """Stack the matrices of all experts, each given by its parts."""

    def prepare(self, model: CausalLM, layout: KVLayout, block_size: int) -> None:
        """Take a bound model and the form of its cache. Weights may still be loading."""

    def settle(self) -> None:
        """Wait until all weights are loaded, so that the first step need not wait."""

    def reserve(self, size: StepSize, spare_bytes: int) -> int:
        """Return the bytes that the largest step takes beside weights and cache.

        Reserve them without computing a step where they are known exactly. Otherwise measure such
        a step, or return an estimate that is far below `spare_bytes`, the memory that is left over
        for it. The size also bounds the slots (`sequences`) and their tokens (`positions`).
        """

    def make_cache(self, num_blocks: int) -> None:
        """Make an empty cache, in place of the one before."""

    def step(self, batch: HostBatch, draws: Draws) -> Pending:
        """Submit a step; return at once where the backend computes it in another thread.

        Steps run in the order of their submission. The arrays of `batch` and `draws` may be read
        until the step has been collected. A batch without rows only frees, opens and copies. An
        error of the whole step is raised here or by `collect`; no step may follow it.
        """


class LogitsBackend(Backend, Protocol):
    """A backend whose logits can be read, which perplexity and tests of exactness need."""

    def forward(self, batch: HostBatch) -> ForwardResult:
        """Copy blocks and write the batch's KV; return logits and states of the wanted rows.

        It runs alone: no step is in flight, and no token is `LAST_SAMPLE`.
        """
