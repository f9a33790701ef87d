"""The batches of successive plans: one that only goes on is made out of the last.

Most steps of a busy engine take every sequence of the step before one token further. The tokens
are then those that were drawn, the positions are known beforehand, and all else stays as it is. To
gather it anew would take several times as long: each operation of numpy, cheap in a loop, costs ten
microseconds and more where the weights have pushed all else out of the processor's caches.

`build` says what a batch must be; a test compares the two in every step of random worlds.
"""

from __future__ import annotations

import numpy as np

from octavo.backends.base import HostBatch, Ints
from octavo.core.plan import StepPlan
from octavo.runner.batch import Wanted, build
from octavo.runner.slots import SlotState


class Batches:
    """Makes a batch of each plan, in the order in which they run."""

    def __init__(self, state: SlotState) -> None:
        self._state = state
        # What the last plan's chunks sampled, one each, where that is all they did: the next
        # tokens, if the next plan goes on. None: there is nothing to go on from.
        self.drawn: Ints | None = None
        self._slots: tuple[int, ...] = ()
        self._ahead: list[Ints] = []  # positions of the steps to come, the next one's last
        self._last: tuple[HostBatch, Wanted]

    def make(self, plan: StepPlan) -> tuple[HostBatch, Wanted]:
        """The batch of a plan whose differences have been applied."""
        drawn, self.drawn = self.drawn, None
        if (
            drawn is not None
            and self._ahead
            and plan.slots == self._slots
            and not plan.opened
            and not plan.drafts
            and plan.num_tokens == len(drawn)
        ):
            self._go_on(plan, drawn)
        else:
            self._begin(plan)
        return self._last

    def _begin(self, plan: StepPlan) -> None:
        self._last = batch, _ = build(plan, self._state)
        self._slots, self._ahead = plan.slots, []
        if len(batch.positions) == len(plan.slots):
            # Until the longest sequence needs wider tables.
            until = batch.tables[0].shape[1] * self._state.block_size
            steps = np.arange(until - 1 - int(batch.positions.max()), 0, -1, dtype=np.int32)
            self._ahead = list(batch.positions + steps[:, None])

    def _go_on(self, plan: StepPlan, drawn: Ints) -> None:
        batch, wanted = self._last
        for slot, _ in plan.new_blocks:
            row = plan.slots.index(slot)
            for part, table in zip(batch.tables, self._state.tables, strict=True):
                part[row] = table[slot, : part.shape[1]]
        _, _, row_starts, tables, logits_rows, hidden_rows = batch
        positions = self._ahead.pop()
        batch = HostBatch(drawn, positions, row_starts, tables, logits_rows, hidden_rows)
        self._last = batch, wanted
