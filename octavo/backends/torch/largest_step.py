"""The memory of the largest step, measured by running its forward pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from octavo.backends.base import StepSize
from octavo.backends.step import HostBatch
from octavo.observe.machine import forget_peak, give_back_freed, peak_bytes, resident_bytes


def largest_batch(size: StepSize, block_size: int, num_groups: int) -> HostBatch:
    """Make the forward pass of the largest step over a cache of one block.

    Its sequences are prompts of equal length from their beginning. All their blocks are the null
    block: what they read is meaningless, and takes as much memory as anything else.
    """
    count = min(size.rows, size.sequences)
    lengths = np.full(count, size.rows // count)
    lengths[: size.rows % count] += 1
    row_starts = np.zeros(count + 1, np.int32)
    row_starts[1:] = np.cumsum(lengths)
    rows = np.arange(size.rows, dtype=np.int32)
    table = np.zeros((count, -(-int(lengths[0]) // block_size)), np.int32)
    return HostBatch(
        token_ids=np.zeros(size.rows, np.int32),
        positions=rows - np.repeat(row_starts[:-1], lengths),
        row_starts=row_starts,
        tables=(table,) * num_groups,
        logits_rows=rows[: size.wanted_rows],
        hidden_rows=rows,
        slots=np.arange(count, dtype=np.int32),
    )


def peak_growth(run: Callable[[], object]) -> int:
    """Return by how many bytes this process grew at most while `run` ran.

    Where the system cannot forget an earlier peak, a larger one hides the growth.
    """
    give_back_freed()
    before = resident_bytes()
    forget_peak()
    result = run()  # kept until the peak is read
    grown = peak_bytes() - before
    del result
    give_back_freed()
    return max(0, grown)
