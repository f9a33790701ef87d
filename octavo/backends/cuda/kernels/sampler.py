"""A sampler whose draws are computed by kernels."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from octavo.backends.cuda.accelerator import Accelerator
from octavo.backends.cuda.filters import Filters
from octavo.backends.cuda.kernels.draw import draw
from octavo.backends.cuda.kernels.edges import change_logits
from octavo.backends.cuda.sampler import DeviceSampler


class KernelSampler(DeviceSampler):
    """A sampler of a device that has kernels."""

    def _best(
        self,
        raw: Tensor,
        temperatures: Tensor,
        keys: Tensor,
        masks: Tensor | None,
        filters: Filters | None,
    ) -> Tensor:
        return draw(raw, temperatures, keys, masks, filters, cast("Accelerator", self._home))

    def _change_logits(self, logits: Tensor, places: Tensor, numbers: Tensor) -> None:
        change_logits(logits, places, numbers, cast("Accelerator", self._home))
