"""Small random models on the fake device, whose steps refuse whatever a card would wait for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from octavo.backends.base import Ints, KVLayout, Longs, StepSize
from octavo.backends.cuda.accelerator import Accelerator
from octavo.backends.cuda.backend import CudaBackend
from octavo.backends.cuda.fake.accelerator import FakeAccelerator
from octavo.backends.cuda.graph_batch import GraphBatch, operation_refusal
from octavo.backends.torch.attention import KEY_TILE, QUERY_TILE
from octavo.layers import Model
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.models.llama import Llama
from octavo.program.listing import Instruction
from tests.runner.tiny import VOCABULARY, Family, RandomWeights, Windows, make_spec


def make_backend(
    windows: Windows,
    num_blocks: int,
    block_size: int,
    family: Family = Llama,
    *,
    has_short_kv: bool = False,
) -> CudaBackend:
    """Make a backend with an empty cache on a fake device of its own."""
    model, layout = made(windows, family)
    backend = CudaBackend(FakeAccelerator(), has_short_kv=has_short_kv)
    backend.prepare(model, layout, block_size)
    backend.make_cache(num_blocks)
    return backend


class WholeSpans(GraphBatch):
    """The batch of a graph whose attention is the reference's, over all tiles that there may be.

    A tile that a row does not see changes no bit, so that steps have the reference's very bits.
    """

    no_cell = 0

    def prepare(self, at: Tensor) -> None:
        rows = len(at)
        self.item_rows = self.item_rows.expand(rows, QUERY_TILE)
        positions = torch.full((rows, QUERY_TILE), -1, device=at.device)
        positions[:, 0] = self.positions
        self.item_positions = positions
        self.item_tables = [each.long() for each in self.item_tables]
        self.row_places = self.row_places * QUERY_TILE

    def span(self, window: int, both_ways: bool) -> tuple[Longs, Longs, range]:
        assert not both_ways
        positions = self.item_tables[0].shape[1] * self.buffers.block_size
        nowhere = np.zeros(0, np.int64)  # the bounds of items, which only the host's batches have
        return nowhere, nowhere, range(-(-positions // KEY_TILE))

    @staticmethod
    def most_chunks(instructions: Sequence[Instruction]) -> int:
        return 1

    @staticmethod
    def num_chunks(positions: Ints) -> int:
        return 1


class CapturingBackend(CudaBackend):
    """A backend of torch's operations whose decode steps are captured, as those of kernels are."""

    _graph_batches = WholeSpans

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__(accelerator, captures=True)

    def _graph_refusal(self) -> str | None:
        assert self._interpreter is not None
        return operation_refusal(self._interpreter.instructions)


SIZE = StepSize(
    rows=32, wanted_rows=32, sequences=20, positions=128, hidden=16, ffn=24, heads=2, kv_heads=1,
    head_dim=8, vocabulary=VOCABULARY,
)  # fmt: skip


def make_capturing(
    windows: Windows, num_blocks: int, block_size: int, family: Family = Llama
) -> CapturingBackend:
    """Make a backend whose decode steps are replayed, and the largest graph is captured."""
    model, layout = made(windows, family)
    backend = CapturingBackend(FakeAccelerator())
    backend.prepare(model, layout, block_size)
    if backend._graph_refusal() is None:
        backend._size = SIZE
    backend.make_cache(num_blocks)
    return backend


@lru_cache(maxsize=16)
def made(windows: Windows, family: Family = Llama) -> tuple[Model, KVLayout]:
    """Return a model whose weights are on a fake device; both are without a state."""
    model = family(make_spec(windows))
    bind(model, CudaBackend(FakeAccelerator()), RandomWeights())
    return model, place_layers(model)


def accelerator_of(backend: CudaBackend) -> FakeAccelerator:
    """Return the fake device that a backend computes on."""
    accelerator = backend._accelerator
    assert isinstance(accelerator, FakeAccelerator)
    return accelerator
