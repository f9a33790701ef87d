"""Several ranks as threads of one process: each binds its share, and all run one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from octavo.backends.base import KVLayout
from octavo.backends.step import HostBatch
from octavo.backends.stored_rows import Floats, StoredRows
from octavo.backends.torch.backend import TorchBackend
from octavo.distributed.communicator import Communicator, ThreadCommunicator, ThreadGroup
from octavo.layers import Model, Module
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.models.weights import Weights

NUM_BLOCKS, BLOCK_SIZE = 64, 4


class CountingBackend(TorchBackend):
    """A reference backend that counts the bytes of the stored rows that it is given, by type."""

    def __init__(self, communicator: Communicator[Any]) -> None:
        super().__init__(communicator=communicator)
        self.stored: dict[str, int] = {}

    def matrix(self, parts: Sequence[StoredRows], module: Module) -> Any:
        self._count(parts)
        return super().matrix(parts, module)

    def experts(self, matrices: Sequence[Sequence[StoredRows]], module: Module) -> Any:
        for parts in matrices:
            self._count(parts)
        return super().experts(matrices, module)

    def _count(self, parts: Sequence[StoredRows]) -> None:
        for part in parts:
            self.stored[part.type] = self.stored.get(part.type, 0) + part.num_bytes


@dataclass
class Outcome:
    """One rank's logits, what it holds, and the layout of its cache."""

    logits: Floats
    model: Model
    stored: dict[str, int]
    layout: KVLayout


def run_ranks(declare: Callable[[], Model], weights: Weights, ranks: int) -> list[Outcome]:
    """Bind and run the model on so many ranks."""

    def work(communicator: ThreadCommunicator) -> Outcome:
        torch.set_num_threads(1)  # the number of a thread, which another thread does not inherit
        model, backend = declare(), CountingBackend(communicator)
        bind(model, backend, weights, communicator.context)
        layout = place_layers(model)
        backend.prepare(model, layout, BLOCK_SIZE)
        backend.make_cache(NUM_BLOCKS)
        logits = backend.forward(two_sequences(model, layout)).logits
        return Outcome(logits, model, backend.stored, layout)

    return ThreadGroup(ranks).run(work)


def two_sequences(model: Model, layout: KVLayout) -> HostBatch:
    """Make a batch of two sequences, with logits of every row."""
    tables = np.arange(1, 13, dtype=np.int32).reshape(2, 6)
    rows = np.arange(20, dtype=np.int32)
    return HostBatch(
        np.random.default_rng(1).integers(0, model.spec.vocabulary, 20).astype(np.int32),
        np.r_[0:13, 0:7].astype(np.int32),
        np.array([0, 13, 20], np.int32),
        tuple(tables + 12 * group for group in range(len(layout.windows))),
        rows,
    )
