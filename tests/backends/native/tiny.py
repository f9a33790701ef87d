"""The runner tests' small model on the native engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.backends.native.backend import NativeBackend, NativeOptions
from octavo.backends.step import HostBatch
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.models.llama import Llama
from tests.runner.tiny import VOCABULARY, Family, RandomWeights, Windows, make_spec

EXACT: dict[str, Any] = {"kv_dtype": "float32", "weights": "float32"}


def make_native(
    windows: Windows, num_blocks: int, block_size: int, family: Family = Llama, **options: Any
) -> NativeBackend:
    """Make a backend with an empty cache; by default in fp32 and with two threads."""
    model = family(make_spec(windows))
    layout = place_layers(model)
    backend = NativeBackend(NativeOptions(**{**EXACT, "num_threads": 2, **options}))
    bind(model, backend, RandomWeights())
    backend.prepare(model, layout, block_size)
    backend.make_cache(num_blocks)
    return backend


def make_batch(*sequences: tuple[int, int, int], groups: int = 1) -> HostBatch:
    """Make a batch of sequences (name, first position, rows), each with its own tokens and blocks.

    The token at a position depends only on the sequence's name and the position.
    """
    ids, positions, starts, tables = [], [], [0], []
    most = max(first + rows for _, first, rows in sequences)
    blocks = -(-most // 16)
    for name, first, rows in sequences:
        at = np.arange(first, first + rows)
        ids.append((at * at * 7 + at + name * 13) % VOCABULARY)
        positions.append(at)
        starts.append(starts[-1] + rows)
        tables.append([1 + name * 40 + block for block in range(blocks)])
    table = np.array(tables, np.int32)
    rows_wanted = np.arange(starts[-1], dtype=np.int32)
    return HostBatch(
        np.concatenate(ids).astype(np.int32),
        np.concatenate(positions).astype(np.int32),
        np.array(starts, np.int32),
        tuple(table + group * 20 for group in range(groups)),
        rows_wanted,
        rows_wanted,
    )
