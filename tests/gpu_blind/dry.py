"""A dry run: a step of a model whose tensors have no memory, to see all launches in its shapes."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from octavo.backends.base import KVLayout
from octavo.backends.cuda.backend import CudaBackend
from octavo.backends.step import HostBatch
from octavo.backends.torch import ops
from octavo.backends.torch.device import Array
from octavo.layers import Model
from tests.gpu_blind.homes import Home, Launched
from tests.gpu_blind.published import META

BLOCK_SIZE = 16
ROWS, ALONE = 2048, 48  # of the step; those that are alone in their sequences


class DryHome(Home):
    """A card without memory, which keeps what would be launched."""

    device = META

    def __init__(self) -> None:
        self.launched: list[Launched] = []
        super().__init__(self.launched.append)

    def upload(self, arrays: Sequence[Array]) -> list[Tensor]:
        return [each.to(META) for each in super().upload(arrays)]

    def fetch(self, tensors: Sequence[Tensor]) -> list[Array]:
        return [np.empty(each.shape, np.float32) for each in tensors]


def launches(model: Model, layout: KVLayout, dtype: str) -> list[Launched]:
    """Return what a step at the end of the longest context launches, and draws of all kinds."""
    home = DryHome()
    backend = CudaBackend(home, dtype, has_kernels=True)
    # Nothing is computed, so that no product can be tried; torch has no dry form of FP8's.
    with (
        mock.patch.object(ops, "_place_matters", return_value=False),
        mock.patch.object(torch, "_scaled_mm"),
    ):
        backend.prepare(model, layout, BLOCK_SIZE)
        # Attention by torch's operations takes a dozen of them for each 64 positions.
        positions = model.spec.max_len if model.spec.latent is None else ROWS
        most = -(-positions // BLOCK_SIZE)
        backend.make_cache(most * len(layout.windows))
        backend.forward(_batch(positions, most, len(layout.windows)))
        with home.working():
            backend._sampler.rehearse(model.spec.vocabulary)
    return home.launched


def _batch(positions: int, blocks: int, groups: int) -> HostBatch:
    """Return one prompt's last rows, and rows of their own at the last position."""
    prompt = np.arange(positions - (ROWS - ALONE), positions, dtype=np.int32)
    starts = np.concatenate(([0], np.arange(ROWS - ALONE, ROWS + 1))).astype(np.int32)
    count = len(starts) - 1
    table = np.broadcast_to(np.arange(blocks, dtype=np.int32), (count, blocks))
    return HostBatch(
        np.zeros(ROWS, np.int32),
        np.concatenate((prompt, np.full(ALONE, positions - 1, np.int32))),
        starts,
        (table,) * groups,
        starts[1:] - 1,
        slots=np.arange(count, dtype=np.int32),
    )
