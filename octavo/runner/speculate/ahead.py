"""The interface of proposers whose proposals the backend computes in the steps themselves."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from octavo.backends.base import Ints
from octavo.backends.step import StepOutput
from octavo.core.config import CoreConfig
from octavo.core.plan import StepPlan
from octavo.runner.batch import Step
from octavo.runner.slots import SlotState
from octavo.runner.speculate.proposer import Proposer


class AheadWork(NamedTuple):
    """The part of a further program in a step, by slot."""

    num_rows: Mapping[int, int]  # of known tokens that are computed then
    chances: Mapping[int, tuple[float, ...]]  # of what it proposes
    num_written: Mapping[int, int]  # leading drafts of the step that have rows already


@runtime_checkable
class AheadProposer(Proposer, Protocol):
    """A proposer that adds its work to steps, as far as their plans ask for it."""

    @property
    def is_used(self) -> bool:
        """True if any open slot may get drafts."""

    def attach(self, state: SlotState, config: CoreConfig) -> None:
        """Take the slots whose texts it follows."""

    def take_blocks(self, plan: StepPlan) -> None:
        """Follow the blocks of a plan."""

    def prepare(self, plan: StepPlan, step: Step) -> tuple[Step, AheadWork]:
        """Add to a step what is computed for it; return it, and what is asked."""

    def collect(
        self, work: AheadWork, slots: Ints, output: StepOutput, lost: Container[int]
    ) -> None:
        """Take what a step has computed and proposed, before its tokens are known ones."""
