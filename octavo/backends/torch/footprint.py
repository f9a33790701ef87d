"""How much memory the torch backend takes for a model; known without torch, before it is loaded."""

from __future__ import annotations

from octavo.backends.base import ELEMENT_BYTES, StepSize, TensorSize

# Copies of the largest values that live at once, as the operations in ops.py and attention.py
# make them.
_QUERY_COPIES = 5
_TILE_COPIES = 5
_SCORE_COPIES = 3
_FFN_COPIES = 5
_HIDDEN_COPIES = 6
_LOGIT_COPIES = 3
_LIBRARY_BYTES = 16 << 20  # what torch and its libraries keep for themselves once they run
# Mirrors attention.py, which needs torch to be imported; a test holds them to be equal.
QUERY_TILE, KEY_TILE, MOST_KEPT_CELLS = 8, 64, 1 << 23
_CELL_BYTES = 8 + QUERY_TILE  # where it is, and which queries of the item do not see it


def weight_bytes(tensor: TensorSize, dtype: str) -> int:
    """A tensor as it is kept, whatever its type in the checkpoint: dequantised to `dtype`."""
    return tensor.rows * tensor.inputs * ELEMENT_BYTES[dtype]


def step_bytes(size: StepSize, dtype: str) -> int:
    """About what the largest step takes while it runs."""
    element_bytes = ELEMENT_BYTES[dtype]
    items = min(size.rows, size.sequences) + size.rows // QUERY_TILE
    width = size.heads * size.head_dim
    queries = items * QUERY_TILE * width * 4 * _QUERY_COPIES
    tiles = items * KEY_TILE * size.kv_heads * size.head_dim * 4 * _TILE_COPIES
    scores = items * QUERY_TILE * size.heads * KEY_TILE * 4 * _SCORE_COPIES
    attention = queries + tiles + scores
    mlp = size.rows * size.ffn * element_bytes * _FFN_COPIES
    stream = size.rows * size.hidden * element_bytes * _HIDDEN_COPIES
    logits = size.wanted_rows * size.vocabulary * 4 * _LOGIT_COPIES
    kept = min(MOST_KEPT_CELLS, items * size.positions) * _CELL_BYTES
    told = size.rows * size.hidden * (element_bytes + 4)  # an embedding that is a mean wants all
    return max(attention, mlp, logits) + stream + told + kept + _LIBRARY_BYTES
