"""The Backend protocol: how a model gets its weights and its cache, and runs steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from octavo.backends.stored_rows import StoredRows
from octavo.layers import KVSpec, Model, Module, Value

if TYPE_CHECKING:
    from octavo.backends.step import Draws, HostBatch, Pending

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Longs = NDArray[np.int64]
Doubles = NDArray[np.float64]

FLOAT_TYPES = ("F32", "F16", "BF16")  # types that are not quantised
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}  # by the names of dtypes


class KVLayers(NamedTuple):
    """The layers of one KV group: what each keeps, how many they are, and the model they are of."""

    spec: KVSpec
    num_layers: int
    owner: str = ""


class UnsupportedKVError(ValueError):
    """A kind of KV that no backend can keep yet."""


class KVLayout(Struct, frozen=True):
    """The layout of the KV cache: groups of layers that share block tables.

    If all groups keep keys and values of one shape, a block belongs to one group at a time, so
    layer i of every group uses the i-th buffer. Only such layouts can be computed so far.
    """

    groups: tuple[KVLayers, ...]

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The window of each group."""
        return tuple(group.spec.window for group in self.groups)

    @property
    def shapes(self) -> set[tuple[str, int, int]]:
        """The different (kind, heads, dimensions); with a single full one, buffers are shared."""
        return {(group.spec.kind, group.spec.heads, group.spec.dim) for group in self.groups}

    @property
    def keeps_nothing(self) -> bool:
        """True if the cache holds keys and values of the running step alone, a layer at a time."""
        return all(group.spec.kind == "none" for group in self.groups)

    @property
    def num_buffers(self) -> int:
        """The number of layers of the largest group."""
        return max(group.num_layers for group in self.groups)

    @property
    def kv_heads(self) -> int:
        """The heads of each layer."""
        return self._shape[0]

    @property
    def head_dim(self) -> int:
        """The size of a head's key or value."""
        return self._shape[1]

    @property
    def _shape(self) -> tuple[int, int]:
        shapes = sorted(self.shapes)
        if len(shapes) != 1 or shapes[0][0] not in ("full", "none"):
            raise UnsupportedKVError(
                f"the model's layers keep KV as {shapes} (kind, heads, dimensions), and the "
                "backends can keep keys and values of one shape alone: this model cannot run yet"
            )
        return shapes[0][1:]

    def block_bytes(self, block_size: int, element_bytes: int, scale_bytes: int = 0) -> int:
        """Return the size of the largest group's block, in which those of other groups fit."""
        vector_sizes = ((each.spec.dim * element_bytes + scale_bytes) for each in self.groups)
        return max(
            group.num_layers * group.spec.block_vectors(block_size) * size
            for group, size in zip(self.groups, vector_sizes, strict=True)
        )


class StepSize(Struct, frozen=True):
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


class TensorSize(Struct, frozen=True):
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


class Arithmetic(NamedTuple):
    """The properties of a backend that decide the bits of results, beside the model."""

    instruction_set: str = ""  # whose kernels compute
    accumulation_order: str = ""  # how products are added up


class Backend(Protocol):
    """An engine that computes steps over its paged KV cache and draws their tokens.

    The calls of a start come in this order: weights (`parameter`, `matrix`, `experts`), `prepare`,
    `settle`, `reserve`, `make_cache`, and then steps.
    """

    @property
    def can_continue(self) -> bool:
        """True if it keeps a step's batch, so that the next one need not repeat it."""

    @property
    def num_threads(self) -> int:
        """The number of the host's threads that compute a step."""

    @property
    def weight_bytes(self) -> int:
        """The memory that the weights take, in bytes."""

    @property
    def arithmetic(self) -> Arithmetic:
        """The instruction set and the order of sums."""

    def parameter(self, array: NDArray[Any]) -> Value:
        """Return a weight that is not a matrix in this backend's own form."""

    def matrix(self, parts: Sequence[StoredRows], module: Module) -> Value:
        """Stack the parts of a matrix for products or lookups."""

    def experts(self, matrices: Sequence[Sequence[StoredRows]], module: Module) -> Value:
        """Stack the matrices of all experts, each given by its parts."""

    def prepare(self, model: Model, layout: KVLayout, block_size: int) -> None:
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
