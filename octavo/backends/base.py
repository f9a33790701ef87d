"""The Backend protocol: how a model gets its weights and its cache, and runs steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from octavo.backends.adapter_weights import AdapterSettings, AdapterWeights
from octavo.backends.stored_rows import StoredRows
from octavo.layers import HiddenStates, KVSpec, Model, Module, Value

if TYPE_CHECKING:
    from octavo.backends.step import Draws, HostBatch, Pending

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Longs = NDArray[np.int64]
Doubles = NDArray[np.float64]

FLOAT_TYPES = ("F32", "F16", "BF16")  # types that are not quantised


ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}  # by the names of dtypes
PAGE_UNIT = 64  # bytes: what kernels want blocks to begin at multiples of
MOST_PADDING = 16  # a page is at most this part larger than its largest block, if that is possible
MOST_PAGES_TRIED = 256  # sizes among which the best is chosen
DRAFTER = "drafter"  # the owner of the KV groups of a second model, which drafts


class BackendEndedError(RuntimeError):
    """The end of a backend, and so of its engine: no request is the reason."""


class KVLayers(NamedTuple):
    """The layers of one KV group: what each keeps, how many they are, and the model they are of."""

    spec: KVSpec
    num_layers: int
    owner: str = ""


class VectorSize(NamedTuple):
    """The size of a kept vector: of each of its numbers, and of its scale.

    Scales are in an array beside the pool, or behind the numbers of their block.
    """

    number_bits: int
    scale_bytes: int = 0  # in an array beside
    block_scale_bytes: int = 0

    def num_bytes(self, dim: int) -> int:
        """Return the bytes that a vector of so many numbers takes of its block."""
        return dim * self.number_bits // 8 + self.block_scale_bytes


class KVPages(Struct, frozen=True):
    """The pages of a pool of bytes that all groups share; each is cut into blocks of one group.

    Block b of a group begins `b * block_bytes(group)` behind the pool's first byte, so that page p
    has its blocks p·n … p·n + n-1, where n is the number of the group's blocks in a page.
    """

    page_bytes: int
    blocks_per_page: tuple[int, ...]  # by group
    scale_bytes: int = 0  # of a page, in arrays beside the pool

    @property
    def whole_bytes(self) -> int:
        """The memory of a page, with its scales."""
        return self.page_bytes + self.scale_bytes

    def block_bytes(self, group: int) -> int:
        """Return the distance from a group's block to the next; the largest block fills a page."""
        return self.page_bytes // self.blocks_per_page[group]


class KVLayout(Struct, frozen=True):
    """The layout of the KV cache: groups of layers that share block tables."""

    groups: tuple[KVLayers, ...]

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The window of each group."""
        return tuple(group.spec.window for group in self.groups)

    @property
    def shapes(self) -> set[tuple[str, int, int]]:
        """The different (kind, heads, dimensions); with a single one, all blocks are equal."""
        return {(group.spec.kind, group.spec.heads, group.spec.dim) for group in self.groups}

    @property
    def keeps_nothing(self) -> bool:
        """True if the cache holds keys and values of the running step alone, a layer at a time."""
        return all(group.spec.kind == "none" for group in self.groups)

    @property
    def has_states(self) -> bool:
        """True if a layer keeps a state of the sequence, which later tokens replace."""
        return any(group.spec.kind == "state" for group in self.groups)

    def pages(self, block_size: int, size_of: Callable[[KVSpec], VectorSize]) -> KVPages:
        """Return the pages that hold blocks of every group; `size_of` is the backend's own.

        Blocks of one shape are of one size, whatever the number of layers: any block then serves
        any group. Blocks of other sizes lie so that vectors are found by multiples of their size.
        """
        vectors = [each.num_layers * each.spec.block_vectors(block_size) for each in self.groups]
        kinds = [size_of(each.spec) for each in self.groups]
        widths = [k.num_bytes(each.spec.dim) for each, k in zip(self.groups, kinds, strict=True)]
        largest = max(count * width for count, width in zip(vectors, widths, strict=True))
        if len(self.shapes) == 1:
            return KVPages(largest, (1,) * len(vectors), max(vectors) * kinds[0].scale_bytes)
        sizes = [count * width for count, width in zip(vectors, widths, strict=True)]
        units = [
            math.lcm(PAGE_UNIT, width - kind.block_scale_bytes)
            for width, kind in zip(widths, kinds, strict=True)
        ]
        page_bytes = _best_page(sizes, units)
        counts = [_count(page_bytes, *block) for block in zip(sizes, units, strict=True)]
        scales = sum(page_bytes // w * k.scale_bytes for w, k in zip(widths, kinds, strict=True))
        return KVPages(page_bytes, tuple(counts), scales)


def _best_page(sizes: Sequence[int], units: Sequence[int]) -> int:
    """Return the size of a page that blocks of these sizes fill best, made of whole units."""
    step, largest = math.lcm(*units), max(sizes)
    first = -(-largest // step) * step
    room = max(0, largest + largest // MOST_PADDING - first)
    step *= max(1, room // (MOST_PAGES_TRIED * step))

    def fullness(page_bytes: int) -> float:
        """Return the part of a page that the blocks fill of the group that fills it least."""
        blocks = zip(sizes, units, strict=True)
        return min(_count(page_bytes, size, unit) * size for size, unit in blocks) / page_bytes

    return max(range(first, first + room + 1, step), key=fullness)


def _count(page_bytes: int, size: int, unit: int) -> int:
    """Return into how many blocks of this size, and of whole units, a page can be cut."""
    num_units = page_bytes // unit
    return next(n for n in range(page_bytes // size, 0, -1) if num_units % n == 0)


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
    kept: tuple[Floats, ...] = ()  # [hidden_rows, hidden size]: what each kept layer reads


class TensorSize(Struct, frozen=True):
    """The size of a tensor that a layer will hold, known before the tensor is read."""

    type: str  # GGUF's name for the rows that will be packed; F32 where they are computed first
    rows: int
    inputs: int
    is_matrix: bool  # used in products or lookups
    is_embedding: bool
    is_qkv: bool = False  # the projection to queries, keys and values
    is_in_act_order: bool = False  # in a stack or a table, where inputs cannot keep such an order
    owner: str = ""  # of the program that uses it, as in `Backend.add_program`


class Footprint(Protocol):
    """The memory that a backend will take for a model, known before anything is loaded."""

    @property
    def most_kv_bytes(self) -> int:
        """The largest KV cache that is worth choosing automatically."""

    def weight_bytes(self, tensor: TensorSize) -> int:
        """Return the bytes of a tensor in the form that the backend keeps."""

    def pages(self, layout: KVLayout, block_size: int) -> KVPages:
        """Return the pages of the KV cache, which the core calls blocks of the largest group."""

    def step_bytes(self, *sizes: StepSize) -> int:
        """Estimate the memory of the largest step while it runs, the model's and further programs'.

        The first size is that of the model.
        """


class Arithmetic(NamedTuple):
    """The properties of a backend that decide the bits of results, beside the model."""

    instruction_set: str = ""  # whose kernels compute
    accumulation_order: str = ""  # how products are added up


class WeightMaker(Protocol):
    """The part of a backend that turns the tensors of a model into weights."""

    def parameter(self, array: NDArray[Any]) -> Value:
        """Return a weight that is not a matrix in this backend's own form."""

    def matrix(self, parts: Sequence[StoredRows], module: Module) -> Value:
        """Stack the parts of a matrix for products or lookups."""

    def experts(self, matrices: Sequence[Sequence[StoredRows]], module: Module) -> Value:
        """Stack the matrices of all experts, each given by its parts."""


class Backend(WeightMaker, Protocol):
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

    def maker(self, owner: str) -> WeightMaker:
        """Return what makes the weights of a further program of this owner."""

    def prepare(
        self,
        model: Model,
        layout: KVLayout,
        block_size: int,
        kept_layers: Sequence[int] = (),
        adapters: AdapterSettings | None = None,
        features: HiddenStates | None = None,
    ) -> None:
        """Take a bound model and the form of its cache. Weights may still be loading.

        What the kept layers read is an output for the rows whose hidden states are wanted. The
        features of every row are kept for a further program, if there are any, or the last states
        of the rows from which tokens are drawn are passed to one. With
        `adapters`, rows may have one; without, every row has the bits of a model that has none.
        Raise NoAdaptersError if this backend cannot have adapters of these settings.
        """

    def adapter(self, weights: AdapterWeights) -> Value:
        """Return an adapter in this backend's own form, for `HostBatch.adapter_slots`.

        It may be called in any thread, beside steps. Raise ValueError, with the projection's path,
        for what the backend cannot compute.
        """

    def add_program(self, model: Model, owner: str) -> None:
        """Take a further bound model over the same slots; `prepare` has been called.

        Its KV is in the layout's groups of this owner, unless it reads the last states alone. It
        computes what `Draws.ahead` asks for, and no text depends on that. Raise ValueError if the
        layout has no such groups, or the vocabularies differ.
        """

    def settle(self) -> None:
        """Wait until all weights are loaded, so that the first step need not wait."""

    def reserve(self, size: StepSize, spare_bytes: int) -> int:
        """Return the bytes that the largest step takes beside weights and cache.

        Reserve them without computing a step where they are known exactly. Otherwise measure such
        a step, or return an estimate that is far below `spare_bytes`, the memory that is left over
        for it. The size also bounds the slots (`sequences`) and their tokens (`positions`).
        """

    def make_cache(self, num_blocks: int) -> None:
        """Make an empty cache of so many pages, in place of the one before."""

    def block_bytes(self, group: int) -> int:
        """Return the size of a block of a KV group, as steps save and load it."""

    def step(self, batch: HostBatch, draws: Draws) -> Pending:
        """Submit a step; return at once where the backend computes it in another thread.

        Steps run in the order of their submission. The arrays of `batch` and `draws` may be read
        until the step has been collected. A batch without rows only frees, opens, saves, copies
        and loads. An error of the whole step is raised here or by `collect`; no step may follow it.
        """


class LogitsBackend(Backend, Protocol):
    """A backend whose logits can be read, which perplexity and tests of exactness need."""

    def forward(self, batch: HostBatch) -> ForwardResult:
        """Copy blocks and write the batch's KV; return logits and states of the wanted rows.

        It runs alone: no step is in flight, and no token is `LAST_SAMPLE`.
        """
