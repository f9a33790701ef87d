"""The batch of a step on a device, whose host may not ask what is computed there."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, cast

from octavo.backends.torch.attention import Tile, TorchBatch

if TYPE_CHECKING:
    from torch import Tensor

    from octavo.backends.cuda.accelerator import Accelerator
    from octavo.backends.cuda.kernels.paged import PagedBatch


class DeviceBatch(TorchBatch):
    """A batch whose tiles have all items, and masks whether they are needed or not.

    A tile that an item does not see changes no bit of its sums. Which tiles there are follows from
    positions, which the host knows.
    """

    # The positions of rows, below 0 those of rows that are none; None: all are rows.
    marks: Tensor | None = None

    @property
    def home(self) -> Accelerator:
        """The card that has the batch."""
        return cast("Accelerator", self.buffers.home)

    @cached_property
    def paged(self) -> PagedBatch:
        """The part that kernels of attention read."""
        from octavo.backends.cuda.kernels.paged import PlannedBatch

        return PlannedBatch(self.host, self.home)

    def _tile(
        self, group: int, window: int, skipped: int, both_ways: bool, number: int
    ) -> Tile | None:
        every = slice(None)
        cells, seen = self.cells_and_seen(every, group, window, skipped, both_ways, number)
        unseen = ~seen.any(1)
        return Tile(every, cells, ~seen[:, None, :, None], unseen[:, :, None, None])
