"""The batches of successive plans, each made from the previous one where possible.

Most steps of a busy engine advance every sequence of the previous step by one token. The tokens are
then the ones just drawn, the positions are known in advance, and everything else is unchanged. To
build such a batch anew takes several times as long: an operation of numpy, cheap in a loop, costs
ten microseconds and more after the weights have evicted everything else from the caches.

`build` defines the correct batch; a test compares the two in every step of random worlds.
"""

from __future__ import annotations

import numpy as np

from octavo.backends.base import Ints
from octavo.backends.step import HostBatch
from octavo.core.plan import StepPlan
from octavo.runner.batch import Wanted, build
from octavo.runner.slots import SlotState


class BatchReuse:
    """The maker of each plan's batch, in the order in which the plans run."""

    def __init__(self, state: SlotState) -> None:
        self._state = state
        # The tokens that the last plan's chunks sampled, if each chunk sampled one and did nothing
        # else. They are the inputs of a plan that continues the last. None: nothing to continue.
        self.drawn: Ints | None = None
        self._slots: tuple[int, ...] = ()
        self._ahead: list[Ints] = []  # positions of the coming steps, the next step's last
        self._last: tuple[HostBatch, Wanted]

    def make(self, plan: StepPlan) -> tuple[HostBatch, Wanted]:
        """Make the batch of a plan whose differences have been applied."""
        drawn, self.drawn = self.drawn, None
        if (
            drawn is not None
            and self._ahead
            and plan.slots == self._slots
            and not plan.opened
            and not plan.drafts
            and plan.num_tokens == len(drawn)
        ):
            self._continue(plan, drawn)
        else:
            self._begin(plan)
        return self._last

    def _begin(self, plan: StepPlan) -> None:
        self._last = batch, _ = build(plan, self._state)
        self._slots, self._ahead = plan.slots, []
        if len(batch.positions) == len(plan.slots):
            # The run ends when the longest sequence needs wider tables.
            until = batch.tables[0].shape[1] * self._state.block_size
            steps = np.arange(until - 1 - int(batch.positions.max()), 0, -1, dtype=np.int32)
            self._ahead = list(batch.positions + steps[:, None])

    def _continue(self, plan: StepPlan, drawn: Ints) -> None:
        batch, wanted = self._last
        for slot, _ in plan.new_blocks:
            row = plan.slots.index(slot)
            for part, table in zip(batch.tables, self._state.tables, strict=True):
                part[row] = table[slot, : part.shape[1]]
        _, _, row_starts, tables, logits_rows, hidden_rows = batch
        positions = self._ahead.pop()
        batch = HostBatch(drawn, positions, row_starts, tables, logits_rows, hidden_rows)
        self._last = batch, wanted
