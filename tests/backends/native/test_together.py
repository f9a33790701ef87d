"""Sequences that share a prefix's blocks read it together, with the same bits as each alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.backends.native import _native
from octavo.backends.step import HostBatch
from tests.backends.native.tiny import make_native
from tests.runner.tiny import FULL, VOCABULARY, Windows

SPLIT_BLOCKS = 512 // 16  # sequences read runs of so many blocks together
NUM_SHARED = 2 * SPLIT_BLOCKS + 3
OWN_BLOCKS = 10


def batch_of(groups: int, *sequences: tuple[int, int, int]) -> HostBatch:
    """Make a batch of sequences (name, first position, rows) that share one prefix."""
    ids, positions, starts, tables = [], [], [0], []
    for name, first, rows in sequences:
        at = np.arange(first, first + rows)
        ids.append(np.where(at < 16 * NUM_SHARED, at * at * 3 + at, at * 7 + name * 13))
        positions.append(at)
        starts.append(starts[-1] + rows)
        own = NUM_SHARED + OWN_BLOCKS * name
        tables.append([*range(1, NUM_SHARED + 1), *range(own + 1, own + OWN_BLOCKS + 1)])
    table = np.array(tables, np.int32)
    rows_wanted = np.arange(starts[-1], dtype=np.int32)
    return HostBatch(
        (np.concatenate(ids) % VOCABULARY).astype(np.int32),
        np.concatenate(positions).astype(np.int32),
        np.array(starts, np.int32),
        tuple(table + 160 * group for group in range(groups)),
        rows_wanted,
        rows_wanted[:0],
    )


@pytest.mark.parametrize("tier", _native.tiers())
@pytest.mark.parametrize("windows", [FULL, (None, 20, None, 20)])
@pytest.mark.parametrize("options", [{}, {"kv_dtype": "bfloat16"}])
def test_who_reads_together_gets_what_he_gets_alone(
    tier: str, windows: Windows, options: dict[str, Any]
) -> None:
    groups = len(set(windows))
    backend = make_native(windows, 160 * groups, 16, instruction_set=tier, **options)
    end = 16 * NUM_SHARED
    for first in range(0, end, 240):
        backend.forward(batch_of(groups, (0, first, min(240, end - first))))
    steps: list[list[tuple[int, int, int]]] = [
        [(name, end, 1 + name % 3) for name in range(6)],  # a few rows, finished before all attend
        [(name, end + 3, 1) for name in range(6)],  # one each: finished by the items of attention
        [(name, end + 4, 1) for name in range(5)] + [(5, end + 4, 30)],
    ]
    for name in range(6):
        backend.forward(batch_of(groups, (name, end, 3)))
    for step in steps:
        alone = [backend.forward(batch_of(groups, each)).logits.copy() for each in step]
        together = backend.forward(batch_of(groups, *step)).logits
        assert np.array_equal(together, np.concatenate(alone))
    # Only some of the rows are wanted.
    batch = batch_of(groups, *steps[0])
    whole = backend.forward(batch).logits.copy()
    some = np.array([0, 2, 5, 6, 11], np.int32)
    assert np.array_equal(backend.forward(batch._replace(logits_rows=some)).logits, whole[some])
