"""Estimates the native engine's memory for a model before any of it is loaded."""

from __future__ import annotations

from msgspec import Struct

from octavo.backends.base import KVLayout, KVPages, StepSize, TensorSize, VectorBytes
from octavo.backends.native import _native
from octavo.backends.native.packing import PANEL, CpuWeights, KvDtype, choose_format

# Rows as wide as the residual stream that live at once: the stream, its norm, what is added to it.
_HIDDEN_ROWS = 3
# A prepared row, beside the row itself: two bytes for each number, as int8 with scales or as bf16.
_PREPARED_BYTES = 2
_LIBRARY_BYTES = 24 << 20  # modules that the first step imports, and arrays of batches
# The largest KV cache that is chosen automatically: more than the CPU's speed can make use of.
_MOST_KV_BYTES = 4 << 30
_KV_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}
_SCALE_BYTES = {"int8": 4}  # of each vector of a head


def kv_pages(layout: KVLayout, block_size: int, kv_dtype: KvDtype) -> KVPages:
    """Return the pages of a cache of this type."""
    vector = VectorBytes(_KV_BYTES[kv_dtype], _SCALE_BYTES.get(kv_dtype, 0))
    exact = VectorBytes(_KV_BYTES["float32"])
    return layout.pages(block_size, lambda spec: exact if spec.kind == "state" else vector)


class NativeFootprint(Struct, frozen=True):
    """The native engine's memory for a model; implements `octavo.backends.base.Footprint`."""

    weights: CpuWeights
    kv_dtype: KvDtype
    most_kv_bytes: int = _MOST_KV_BYTES

    def weight_bytes(self, tensor: TensorSize) -> int:
        """Return the bytes of a packed tensor: panels of its format, or fp32 if it is no matrix."""
        if not tensor.is_matrix:
            return tensor.rows * tensor.inputs * 4
        format_ = choose_format(
            tensor.type, tensor.inputs, self.weights, is_embedding=tensor.is_embedding
        )
        return -(-tensor.rows // PANEL) * _native.panel_bytes(format_, tensor.inputs)

    def pages(self, layout: KVLayout, block_size: int) -> KVPages:
        return kv_pages(layout, block_size, self.kv_dtype)

    def step_bytes(self, size: StepSize) -> int:
        """Estimate the largest step's memory while it runs: scratch for its rows, and logits."""
        width = size.heads * size.head_dim
        projected = width + 2 * size.kv_heads * size.head_dim
        inner = max(projected + width, 2 * size.ffn)
        row = 4 * (_HIDDEN_ROWS * size.hidden + inner)
        prepared = _PREPARED_BYTES * max(size.hidden, width, size.ffn)
        logits = size.wanted_rows * size.vocabulary * 4
        # Wanted rows have their own scratch in the last layer. A mean embedding wants all of a
        # step's rows, beside those that are sampled from, and their states are returned.
        scratch = (size.rows + size.rows + size.wanted_rows) * (row + prepared)
        splits = size.positions // _native.SPLIT_TOKENS
        sums = size.sequences * splits * size.heads * (size.head_dim + _native.RECORD_FLOATS) * 4
        # Sums of sequences that read a shared prefix together.
        shared = min(sums, _native.MOST_SHARED_BYTES)
        return scratch + size.rows * size.hidden * 4 + logits + shared + _LIBRARY_BYTES
