"""Proposes by programs that lack nothing in the step in which a token is drawn.

The backend has the state from which it was drawn, from which each of Medusa's heads draws a token;
and a block of DFlash reads what the model itself keeps. So there is nothing to compute before, to
keep, or to catch up with.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np

from octavo.backends.base import DRAFTER, Ints
from octavo.backends.step import NO_ROWS, Ahead, StepOutput
from octavo.core.plan import NewSlot, StepPlan
from octavo.runner.batch import Step
from octavo.runner.speculate.ahead import AheadWork, ComputedProposer, Wanted, wanted_by
from octavo.runner.speculate.proposer import NOTHING, Proposal, Turn

_ALL = np.iinfo(np.int32).max  # of the drafts of a step: none has a row that it lacks


class HeadsProposer(ComputedProposer):
    """The proposals of heads, or of a block; implements `AheadProposer`."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._proposals: dict[int, Proposal] = {}  # of each slot that may get drafts

    @property
    def is_used(self) -> bool:
        """True if any open slot may get drafts."""
        return bool(self._proposals)

    def open(self, new: NewSlot) -> None:
        self._proposals[new.slot] = NOTHING

    def free(self, slot: int) -> None:
        del self._proposals[slot]

    def propose(self, turns: Sequence[Turn]) -> Sequence[Proposal]:
        return [self._proposals[turn.slot] for turn in turns]

    def take_blocks(self, plan: StepPlan) -> None:
        pass  # it keeps nothing in blocks

    def prepare(self, plan: StepPlan, step: Step) -> tuple[Step, AheadWork | None]:
        """Add to a step what is proposed behind it; return it, and what is asked."""
        if not self._takes_part(plan):
            return step, None
        asked = wanted_by(plan)
        wanted = {
            slot: each for slot, each in asked.items() if each.chances and slot in self._proposals
        }
        work = AheadWork({}, wanted, {})
        if not wanted:
            return step, work
        drawn = [wanted.get(slot, Wanted()) for slot in step.draws.slots.tolist()]
        counts = [each.num_places for each in drawn]
        ahead = Ahead(
            DRAFTER,
            np.array(counts, np.int32),
            np.full(len(counts), _ALL, np.int32),
            NO_ROWS,
            NO_ROWS,
            np.zeros(len(plan.slots) + len(plan.branches) + 1, np.int32),
            np.array([each.width for each in drawn], np.int32),
        )
        return step._replace(draws=step.draws._replace(ahead=ahead)), work

    def collect(
        self, work: AheadWork, slots: Ints, output: StepOutput, lost: Container[int]
    ) -> None:
        """Take what a step has proposed."""
        proposals = output.proposals or ((),) * len(output.tokens)
        for slot, proposal in zip(slots.tolist(), proposals, strict=True):
            if slot in self._proposals and slot not in lost:
                self._proposals[slot] = work.wanted.get(slot, Wanted()).proposal(proposal)
