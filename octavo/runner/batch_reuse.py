"""The steps of successive plans, each made from the previous one where possible.

Most steps of a busy engine advance every sequence of the previous step by one token. The tokens are
then the slots' last samples, which the backend has, the positions are known in advance, and
everything else is unchanged. To build such a step anew takes several times as long: an operation of
numpy, cheap in a loop, costs ten microseconds and more after the weights have evicted everything
else from the caches.

A backend that keeps the batch of a step (`can_continue`) is given only what is new: blocks that the
tables got. Any other is given the arrays, as far as possible those of the previous step.

`build` defines the correct step; a test compares the two in every step of random worlds.
"""

from __future__ import annotations

import numpy as np

from octavo.backends.base import Ints
from octavo.backends.step import LAST_SAMPLE, NO_ROWS, Draws, HostBatch
from octavo.core.plan import StepPlan
from octavo.runner.batch import Opened, Step, build
from octavo.runner.drafted_batch import build_drafted
from octavo.runner.slots import SlotState

_CONTINUED = HostBatch(NO_ROWS, NO_ROWS, NO_ROWS, (), NO_ROWS, continues=())


class BatchReuse:
    """The maker of each plan's step, in the order in which the plans run."""

    def __init__(self, state: SlotState, *, can_continue: bool = False) -> None:
        self._state = state
        self._can_continue = can_continue
        self._step: Step | None = None  # for such a backend: what continues the last step
        # Positions of the steps that continue the last one, the next step's last. Empty: a plan
        # cannot continue it.
        self._ahead: list[Ints] = []
        self._slots: tuple[int, ...] = ()
        # The block tables of these slots, if the last step had drafts.
        self._drafted_tables: tuple[Ints, ...] = ()
        self._counts: tuple[int, ...] = ()
        self._batch: HostBatch
        self._draws: Draws

    def make(self, plan: StepPlan, opened: Opened) -> Step:
        """Make the step of a plan whose differences have been applied."""
        if (
            (self._step is not None or self._ahead)
            and (plan.slots is self._slots or plan.slots == self._slots)
            and not opened
            and not plan.drafts
            and (plan.counts is self._counts or plan.num_tokens == len(plan.slots))
        ):
            if self._step is None:
                if self._has_room(plan):
                    return self._continued(plan)
            elif not (plan.new_blocks or plan.copies or plan.freed):
                return self._step
            else:
                return self._only_new(plan, self._step)
        step = self._drafted(plan) if plan.drafts else None
        if step is None:
            step = build(plan, self._state, opened)
            self._remember(plan, step)
        return step

    def forget(self) -> None:
        """Build the next step anew."""
        self._ahead, self._step, self._drafted_tables = [], None, ()

    def _drafted(self, plan: StepPlan) -> Step | None:
        """Make the step of a plan with drafts, if it is one of the usual kind."""
        tables = self._drafted_tables
        if plan.new_blocks or plan.freed or plan.slots != self._slots:
            tables = ()
        step = build_drafted(plan, self._state, tables)
        if step is not None:
            self.forget()
            self._slots, self._drafted_tables = plan.slots, step.batch.tables
        return step

    def _remember(self, plan: StepPlan, step: Step) -> None:
        """Prepare for plans that continue this one, if its chunks only draw a token each."""
        self.forget()
        batch, draws = step.batch, step.draws
        if plan.drafts or draws.prompts or draws.pools or step.chunks is not None:
            return
        if not plan.slots or plan.num_tokens != len(plan.slots):
            return
        self._slots, self._counts = plan.slots, plan.counts
        self._draws = draws._replace(freed=(), opened=())
        if self._can_continue:
            if not len(batch.types):
                self._step = Step(_CONTINUED, self._draws, None, {}, {})
            return
        # The run ends when the longest sequence needs wider tables.
        until = batch.tables[0].shape[1] * self._state.block_size
        steps = np.arange(until - 1 - int(batch.positions.max()), 0, -1, dtype=np.int32)
        self._ahead = list(batch.positions + steps[:, None])
        samples = np.full(len(plan.slots), LAST_SAMPLE, np.int32)
        self._batch = batch._replace(token_ids=samples, copies=())

    def _only_new(self, plan: StepPlan, step: Step) -> Step:
        """Make the step of a plan that continues the last one, for a backend that keeps that."""
        state, grown = self._state, []
        for slot, blocks in plan.new_blocks:
            first = state.num_blocks[slot] - len(blocks[0])
            grown.append((plan.slots.index(slot), int(first), blocks))
        batch = _CONTINUED._replace(copies=plan.copies, continues=tuple(grown))
        return step._replace(batch=batch, draws=self._draws._replace(freed=plan.freed))

    def _has_room(self, plan: StepPlan) -> bool:
        """Return whether the last step's tables are wide enough for the new blocks of a plan.

        They may not be where a second model writes further ahead than the sequences have come.
        """
        width, num_blocks = self._batch.tables[0].shape[1], self._state.num_blocks
        return all(num_blocks[slot] <= width for slot, _ in plan.new_blocks)

    def _continued(self, plan: StepPlan) -> Step:
        token_ids, _, row_starts, tables, logits_rows, hidden_rows, slots = self._batch[:7]
        positions = self._ahead.pop()
        if plan.new_blocks:
            # The arrays of a step in flight must not change.
            tables = tuple([table.copy() for table in tables])
            for slot, _ in plan.new_blocks:
                row = plan.slots.index(slot)
                for part, table in zip(tables, self._state.tables, strict=True):
                    part[row] = table[slot, : part.shape[1]]
        self._batch = batch = HostBatch(
            token_ids,
            positions,
            row_starts,
            tables,
            logits_rows,
            hidden_rows,
            slots,
            plan.copies,
            adapters=self._batch.adapters,
        )
        draws = self._draws._replace(freed=plan.freed) if plan.freed else self._draws
        return Step(batch, draws, None, {}, {})
