"""Steps made from earlier ones, compared with those that are built from nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.backends.step import LAST_SAMPLE, HostBatch
from octavo.core.plan import StepPlan
from octavo.runner.batch import Opened, Step, build
from octavo.runner.batch_reuse import BatchReuse
from octavo.runner.slots import SlotState


class CheckedBatches(BatchReuse):
    """A `BatchReuse` that compares each step with one built from nothing."""

    _kept: HostBatch  # the last one, as a backend keeps it

    def make(self, plan: StepPlan, opened: Opened) -> Step:
        made = super().make(plan, opened)
        fresh = build(plan, self._state, opened)
        if plan.slots:
            batch = self._kept = self._whole(made.batch)
            # Blocks that are not read yet may be missing.
            width = min(each.tables[0].shape[1] for each in (batch, fresh.batch))
            assert width * self._state.block_size > batch.positions.max()
            _require_same(_narrow(batch, width), _narrow(fresh.batch, width))
        _require_same(made.draws, fresh.draws)
        _require_same((made.chunks, made.prompt_starts), (fresh.chunks, fresh.prompt_starts))
        return made

    def _whole(self, batch: HostBatch) -> HostBatch:
        """Return a batch with what it leaves out because the backend keeps it."""
        if batch.continues is None:
            return batch
        last = self._kept
        ends = [first + len(blocks[0]) for _, first, blocks in batch.continues]
        missing = max(0, max(ends, default=0) - last.tables[0].shape[1])
        tables = tuple(np.pad(table, ((0, 0), (0, missing))) for table in last.tables)
        for row, first, blocks in batch.continues:
            for table, part in zip(tables, blocks, strict=True):
                table[row, first : first + len(part)] = part
        return last._replace(
            token_ids=np.full_like(last.token_ids, LAST_SAMPLE),
            positions=last.positions + 1,
            tables=tables,
            copies=batch.copies,
        )


def _narrow(batch: HostBatch, width: int) -> HostBatch:
    return batch._replace(tables=tuple(table[:, :width] for table in batch.tables))


class CheckedTwice(CheckedBatches):
    """The same for a backend that keeps no batch: what one that does would get is checked too."""

    def __init__(self, state: SlotState) -> None:
        super().__init__(state)
        self._other = CheckedBatches(state, can_continue=True)

    def forget(self) -> None:
        super().forget()
        self._other.forget()

    def make(self, plan: StepPlan, opened: Opened) -> Step:
        self._other.make(plan, opened)
        return super().make(plan, opened)


def _require_same(made: Any, fresh: Any) -> None:
    """Compare tuples of tuples of arrays and numbers, types included."""
    if isinstance(fresh, tuple):
        for mine, theirs in zip(made, fresh, strict=True):
            _require_same(mine, theirs)
    elif isinstance(fresh, np.ndarray):
        np.testing.assert_array_equal(made, fresh)
        assert made.dtype == fresh.dtype
    else:
        assert made == fresh
