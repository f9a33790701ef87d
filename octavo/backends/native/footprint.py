"""How much memory the native engine takes for a model, known before any of it is loaded."""

from __future__ import annotations

from octavo.backends.base import StepSize, TensorSize
from octavo.backends.native import _native
from octavo.backends.native.packing import PANEL, CpuWeights, choose_format

# Rows of the residual stream, of what was normalised and of what is added, that live at once.
_HIDDEN_ROWS = 3
# A row made ready for products, beside its numbers: int8 with scales takes two bytes for each, and
# bf16 does too.
_PREPARED_BYTES = 2
# Sums of sequences that read a shared prefix together: what csrc/runtime/attention_plan.cpp allows,
# and of each head its values with a head of their own.
_MOST_SHARED_BYTES = 64 << 20
_SPLIT_TOKENS, _RECORD_FLOATS = 512, 16
_LIBRARY_BYTES = 24 << 20  # modules, and arrays of batches, that come with the first step


def weight_bytes(tensor: TensorSize, weights: CpuWeights) -> int:
    """A tensor as it is kept: in panels of its format, or in fp32 where it is no matrix."""
    if not tensor.is_matrix:
        return tensor.rows * tensor.inputs * 4
    format_ = choose_format(tensor.type, tensor.inputs, weights, is_embedding=tensor.is_embedding)
    return -(-tensor.rows // PANEL) * _native.panel_bytes(format_, tensor.inputs)


def step_bytes(size: StepSize) -> int:
    """About what the largest step takes while it runs: scratch for its rows, and logits."""
    width = size.heads * size.head_dim
    projected = width + 2 * size.kv_heads * size.head_dim
    inner = max(projected + width, 2 * size.ffn)
    row = 4 * (_HIDDEN_ROWS * size.hidden + inner)
    prepared = _PREPARED_BYTES * max(size.hidden, width, size.ffn)
    logits = size.wanted_rows * size.vocabulary * 4
    # Wanted rows have rooms of their own in the last layer. An embedding that is a mean wants all
    # of a step's rows, beside those that are sampled from, and is given their states.
    rooms = (size.rows + size.rows + size.wanted_rows) * (row + prepared)
    splits = size.positions // _SPLIT_TOKENS
    sums = size.sequences * splits * size.heads * (size.head_dim + _RECORD_FLOATS) * 4
    shared = min(sums, _MOST_SHARED_BYTES)
    return rooms + size.rows * size.hidden * 4 + logits + shared + _LIBRARY_BYTES
