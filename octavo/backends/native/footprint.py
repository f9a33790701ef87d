"""Estimates the native engine's memory for a model before any of it is loaded."""

from __future__ import annotations

from msgspec import Struct

from octavo.backends.base import DRAFTER, KVLayout, KVPages, StepSize, TensorSize, VectorSize
from octavo.backends.native import _native
from octavo.backends.native.kv_formats import KV_FORMATS, KvDtype
from octavo.backends.native.packing import (
    PANEL,
    KeptWeights,
    choose_format,
    in_act_order,
)
from octavo.layers import KVSpec
from octavo.options.cpu_types import CpuActivations

# Rows as wide as the residual stream that live at once: the stream, its norm, what is added to it.
_HIDDEN_ROWS = 3
# A prepared row, beside the row itself: two bytes for each number, as int8 with scales or as bf16.
_PREPARED_BYTES = 2
_LIBRARY_BYTES = 14 << 20  # modules that the first step imports, and arrays of batches
# The largest KV cache that is chosen automatically: more than the CPU's speed can make use of.
_MOST_KV_BYTES = 4 << 30


def kv_pages(layout: KVLayout, block_size: int, kv_dtype: KvDtype) -> KVPages:
    """Return the pages of a cache of this type; raise ValueError if it cannot keep the layout."""
    if kv_dtype == "int4" and any(group.spec.latent for group in layout.groups):
        raise ValueError(
            "kv_cache_dtype='int4' is not possible for this model: its attention keeps one latent "
            "row for all heads, which 4 bits would spoil; give 'int8', or leave it out"
        )
    return layout.pages(block_size, lambda spec: vector_size(spec, kv_dtype))


def vector_size(spec: KVSpec, kv_dtype: KvDtype) -> VectorSize:
    """Return the size of a vector that layers keep in a cache of this type."""
    return KV_FORMATS["float32" if spec.is_exact else kv_dtype].size


class NativeFootprint(Struct, frozen=True):
    """The native engine's memory for a model; implements `octavo.backends.base.Footprint`."""

    weights: KeptWeights
    kv_dtype: KvDtype
    activations: CpuActivations = "auto"
    most_kv_bytes: int = _MOST_KV_BYTES
    drafter_weights: KeptWeights = "auto"

    @property
    def formats(self) -> str:
        """The settings on which the formats of the models' weights depend."""
        return f"{self.weights} {self.activations} {self.drafter_weights}"

    def weight_bytes(self, tensor: TensorSize) -> int:
        """Return the bytes of a packed tensor: panels of its format, or fp32 if it is no matrix."""
        if not tensor.is_matrix:
            return tensor.rows * tensor.inputs * 4
        format_ = choose_format(
            in_act_order(tensor.type) if tensor.is_in_act_order else tensor.type,
            tensor.inputs,
            self.drafter_weights if tensor.owner == DRAFTER else self.weights,
            self.activations,
            is_embedding=tensor.is_embedding,
            is_qkv=tensor.is_qkv,
        )
        return -(-tensor.rows // PANEL) * _native.panel_bytes(format_, tensor.inputs)

    def pages(self, layout: KVLayout, block_size: int) -> KVPages:
        return kv_pages(layout, block_size, self.kv_dtype)

    def step_bytes(self, *sizes: StepSize) -> int:
        """Estimate the largest step's memory while it runs: scratch for its rows, and logits."""
        logits = [size.wanted_rows * size.vocabulary * 4 for size in sizes]
        # Further programs run one after the other, and write their logits to one place.
        of_further = max(logits[1:], default=0)
        return sum(map(_scratch_bytes, sizes)) + logits[0] + of_further + _LIBRARY_BYTES


def _scratch_bytes(size: StepSize) -> int:
    """Estimate what a program keeps for the rows of its largest step."""
    width = size.heads * size.head_dim
    projected = width + 2 * size.kv_heads * size.head_dim
    inner = max(projected + width, 2 * size.ffn)
    row = 4 * (_HIDDEN_ROWS * size.hidden + inner)
    prepared = _PREPARED_BYTES * max(size.hidden, width, size.ffn)
    # Wanted rows have their own scratch in the last layer. A mean embedding wants all of a
    # step's rows, beside those that are sampled from, and their states are returned.
    scratch = (size.rows + size.rows + size.wanted_rows) * (row + prepared)
    splits = size.positions // _native.SPLIT_TOKENS
    sums = size.sequences * splits * size.heads * (size.head_dim + _native.RECORD_FLOATS) * 4
    # Sums of sequences that read a shared prefix together.
    shared = min(sums, _native.MOST_SHARED_BYTES)
    return scratch + size.rows * size.hidden * 4 + shared
