"""The memory that the torch backend needs for a model, computed without importing torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from octavo.backends.base import (
    ELEMENT_BYTES,
    KVLayout,
    KVPages,
    StepSize,
    TensorSize,
    VectorSize,
)
from octavo.layers import KVSpec

# Copies of the largest values that exist at once in the operations of ops.py and attention.py.
_QUERY_COPIES = 5
_TILE_COPIES = 5
_SCORE_COPIES = 3
_FFN_COPIES = 5
_HIDDEN_COPIES = 6
_LOGIT_COPIES = 3
_LIBRARY_BYTES = 16 << 20  # allocated by torch and its libraries
# Equal to those of attention.py, which imports torch; a test compares them.
QUERY_TILE, KEY_TILE, MOST_KEPT_CELLS = 8, 64, 1 << 23
_CELL_BYTES = 8 + QUERY_TILE  # its index, and a mask of the queries
# The largest KV cache that is chosen automatically: more than the CPU's speed can make use of.
_MOST_KV_BYTES = 4 << 30


def kv_pages(
    layout: KVLayout, block_size: int, dtype: str, *, has_short_kv: bool = False
) -> KVPages:
    """Return the pages of a cache of this type."""
    size_of = partial(vector_size, dtype=dtype, has_short_kv=has_short_kv)
    return layout.pages(block_size, size_of)


def vector_size(spec: KVSpec, dtype: str, *, has_short_kv: bool = False) -> VectorSize:
    """Return the size of a vector that layers keep in a cache of this type."""
    if has_short_kv and is_short(spec):
        return VectorSize(8, block_scale_bytes=1)
    return VectorSize(8 * ELEMENT_BYTES["float32" if spec.is_exact else dtype])


def is_short(spec: KVSpec) -> bool:
    """Return whether layers of this kind keep eight bits of a number where the cache is short."""
    return spec.kind in ("full", "latent")


@dataclass(frozen=True, slots=True)
class TorchFootprint:
    """The torch backend's memory for a model; implements `octavo.backends.base.Footprint`."""

    dtype: str  # of weights and KV
    most_kv_bytes: int = _MOST_KV_BYTES
    has_short_kv: bool = False  # keys and values have eight bits instead

    def weight_bytes(self, tensor: TensorSize) -> int:
        """Return the size of a tensor in memory, where it is always dequantised."""
        return tensor.rows * tensor.inputs * ELEMENT_BYTES[self.dtype]

    def pages(self, layout: KVLayout, block_size: int) -> KVPages:
        return kv_pages(layout, block_size, self.dtype, has_short_kv=self.has_short_kv)

    def step_bytes(self, *sizes: StepSize) -> int:
        return sum(map(self._program_bytes, sizes)) + _LIBRARY_BYTES

    def _program_bytes(self, size: StepSize) -> int:
        """Estimate what a program takes for its largest step."""
        element_bytes = ELEMENT_BYTES[self.dtype]
        items = min(size.rows, size.sequences) + size.rows // QUERY_TILE
        width = size.heads * size.head_dim
        queries = items * QUERY_TILE * width * 4 * _QUERY_COPIES
        tiles = items * KEY_TILE * size.kv_heads * size.head_dim * 4 * _TILE_COPIES
        scores = items * QUERY_TILE * size.heads * KEY_TILE * 4 * _SCORE_COPIES
        attention = queries + tiles + scores
        mlp = size.rows * size.ffn * element_bytes * _FFN_COPIES
        stream = size.rows * size.hidden * element_bytes * _HIDDEN_COPIES
        logits = size.wanted_rows * size.vocabulary * 4 * _LOGIT_COPIES
        pooled = size.rows * size.hidden * (element_bytes + 4)  # a mean embedding needs all rows
        return max(attention, mlp, logits) + stream + pooled + kept_bytes(size)


def kept_bytes(size: StepSize) -> int:
    """Return the most bytes of the tiles' cells that a step keeps for all its layers."""
    items = min(size.rows, size.sequences) + size.rows // QUERY_TILE
    return min(MOST_KEPT_CELLS, items * size.positions) * _CELL_BYTES
