"""A sampler whose draws are computed by a kernel."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from octavo.backends.cuda.accelerator import Accelerator
from octavo.backends.cuda.kernels.draw import draw
from octavo.backends.cuda.sampler import DeviceSampler


class KernelSampler(DeviceSampler):
    """A sampler of a device that has kernels."""

    def _best(
        self, raw: Tensor, warm: Tensor, temperatures: Tensor, keys: Tensor, masks: Tensor | None
    ) -> Tensor:
        return draw(raw, temperatures, keys, masks, cast("Accelerator", self._home))

    def best_of_rows(self, logits: Tensor, temperatures: Tensor, keys: Tensor) -> Tensor:
        return draw(logits, temperatures, keys, None, cast("Accelerator", self._home))
