"""Batches for the small models on the fake device."""

from __future__ import annotations

import numpy as np

from octavo.backends.step import HostBatch
from octavo.backends.torch.backend import TorchBackend


def rows_of(backend: TorchBackend, *prompts: list[int], start: int = 0) -> HostBatch:
    """Make a batch of sequences, each in blocks of its own; the last row of each is wanted."""
    assert backend._layout is not None
    lengths = [len(each) for each in prompts]
    ends = np.cumsum(lengths, dtype=np.int32)
    most = -(-(start + max(lengths)) // backend._block_size)
    table = np.arange(1, 1 + most * len(prompts), dtype=np.int32).reshape(len(prompts), most)
    return HostBatch(
        np.concatenate([np.array(each, np.int32) for each in prompts]),
        np.concatenate([np.arange(start, start + n, dtype=np.int32) for n in lengths]),
        np.concatenate((np.zeros(1, np.int32), ends)),
        (table,) * len(backend._layout.windows),
        ends - 1,
        slots=np.arange(len(prompts), dtype=np.int32),
    )


def one_row(backend: TorchBackend) -> HostBatch:
    """Make a batch of one token."""
    return rows_of(backend, [3])
