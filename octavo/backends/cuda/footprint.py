"""The memory that the CUDA backend needs for a model, computed without importing torch."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.backends.base import StepSize, TensorSize
from octavo.backends.eight_bit_rows import EIGHT_BIT_TYPES
from octavo.backends.torch.footprint import TorchFootprint

_MOST_KV_BYTES = 1 << 50  # all that there is
# Numbers of noise made at once: of some rows, so that the memory of draws has a bound.
MOST_AT_ONCE = 1 << 22
PART_BYTES = 64 << 20  # of the parts of one launch of attention over chunks
_GRAPH_ROWS = 64  # of a graph, or a multiple of them: the rows of a product's tile
_LEAST_GROUP, _SCALE_BYTES = 32, 4  # of codes of eight bits
_ROW_COPIES = 6  # of a row's hidden state that a graph has at once
# Copies that exist at once in the draws of sampler.py: of noise or of sorted tokens in 8 bytes, of
# logits in 4.
_NOISE_COPIES, _LOGIT_COPIES = 8, 3


@dataclass(frozen=True, slots=True)
class CudaFootprint(TorchFootprint):
    """The backend's memory; implements `octavo.backends.base.Footprint`."""

    most_kv_bytes: int = _MOST_KV_BYTES
    has_graphs: bool = False

    def weight_bytes(self, tensor: TensorSize) -> int:
        """Return the size of a tensor, whose eight bits stay as they are."""
        if tensor.type not in EIGHT_BIT_TYPES or tensor.is_embedding:
            return TorchFootprint.weight_bytes(self, tensor)
        # Scales of whole rows are repeated in these types; as many are counted, 3 % at most.
        group = int(tensor.type.removeprefix("F8By")) if tensor.type != "FP8" else _LEAST_GROUP
        return tensor.rows * (tensor.inputs + -(-tensor.inputs // group) * _SCALE_BYTES)

    def step_bytes(self, *sizes: StepSize) -> int:
        graphs = graph_bytes(sizes[0]) if self.has_graphs else 0
        return TorchFootprint.step_bytes(self, *sizes) + sum(map(draw_bytes, sizes)) + graphs


def graph_bytes(size: StepSize) -> int:
    """Estimate what the largest graph keeps: one row of each sequence, beside the parts of chunks.

    All graphs share its memory.
    """
    rows = -(-size.sequences // _GRAPH_ROWS) * _GRAPH_ROWS
    logits = size.vocabulary * 4 * 2
    others = (2 * size.ffn + _ROW_COPIES * size.hidden) * 4
    return rows * (logits + others) + PART_BYTES


def draw_bytes(size: StepSize) -> int:
    """Return the most bytes that a step's draws take beside its forward pass."""
    logits = size.wanted_rows * size.vocabulary
    noise = min(logits, max(size.vocabulary, MOST_AT_ONCE))
    return noise * 8 * _NOISE_COPIES + logits * 4 * _LOGIT_COPIES
