"""The memory that the CUDA backend needs for a model, computed without importing torch."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.backends.base import StepSize
from octavo.backends.torch.footprint import TorchFootprint

_MOST_KV_BYTES = 1 << 50  # all that there is
# Numbers of noise made at once: of some rows, so that the memory of draws has a bound.
MOST_AT_ONCE = 1 << 22
# Copies that exist at once in the draws of sampler.py: of noise in 8 bytes, of logits in 4.
_NOISE_COPIES, _LOGIT_COPIES = 6, 3


@dataclass(frozen=True, slots=True)
class CudaFootprint(TorchFootprint):
    """The backend's memory; implements `octavo.backends.base.Footprint`."""

    most_kv_bytes: int = _MOST_KV_BYTES

    def step_bytes(self, *sizes: StepSize) -> int:
        return TorchFootprint.step_bytes(self, *sizes) + sum(map(draw_bytes, sizes))


def draw_bytes(size: StepSize) -> int:
    """Return the most bytes that a step's draws take beside its forward pass."""
    logits = size.wanted_rows * size.vocabulary
    noise = min(logits, max(size.vocabulary, MOST_AT_ONCE))
    return noise * 8 * _NOISE_COPIES + logits * 4 * _LOGIT_COPIES
