"""The proposers whose proposals the backend computes in the steps: interface, and common part."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from octavo.backends.base import Ints
from octavo.backends.step import StepOutput
from octavo.core.config import CoreConfig
from octavo.core.plan import StepPlan
from octavo.core.trees.form import ROOT, DraftTree, depths_of
from octavo.runner.batch import Step
from octavo.runner.slots import SlotState
from octavo.runner.speculate.proposer import KeepsNothingShared, Proposal, Proposer


class Wanted(NamedTuple):
    """Drafts that a further program is asked for, by their chances, and their form."""

    chances: tuple[float, ...] = ()
    tree: DraftTree | None = None  # None: a chain

    @property
    def num_places(self) -> int:
        """The number of tokens that it proposes one behind the other."""
        return len(self.chances) if self.tree is None else max(depths_of(self.tree.parents))

    @property
    def width(self) -> int:
        """The number of candidates for each place."""
        return 1 if self.tree is None else 1 + max(self.tree.ranks)

    def proposal(self, candidates: tuple[int, ...]) -> Proposal:
        """Return the drafts among the candidates, which may be those of fewer places."""
        if self.tree is None:
            return Proposal(candidates, self.chances[: len(candidates)])
        tokens: list[int] = []
        is_there: list[bool] = []
        for depth, rank in zip(depths_of(self.tree.parents), self.tree.ranks, strict=True):
            at = (depth - 1) * self.width + rank
            tokens.append(candidates[at] if at < len(candidates) else -1)
        for token, parent in zip(tokens, self.tree.parents, strict=True):
            is_there.append(token >= 0 and (parent == ROOT or is_there[parent]))
        return Proposal(tokens, self.chances, self.tree).without(is_there)


def wanted_by(plan: StepPlan) -> dict[int, Wanted]:
    """Return what a plan asks of a further program, by slot."""
    trees = dict(plan.ahead_trees)
    return {slot: Wanted(chances, trees.get(slot)) for slot, chances in plan.ahead}


class AheadWork(NamedTuple):
    """The part of a further program in a step, by slot."""

    num_rows: Mapping[int, int]  # of known tokens that are computed then
    wanted: Mapping[int, Wanted]  # what it proposes
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

    def prepare(self, plan: StepPlan, step: Step) -> tuple[Step, AheadWork | None]:
        """Add to a step what is computed for it; return it, and what is asked: None if nothing."""

    def collect(
        self, work: AheadWork, slots: Ints, output: StepOutput, lost: Container[int]
    ) -> None:
        """Take what a step has computed and proposed, before its tokens are known ones."""


class ComputedProposer(KeepsNothingShared):
    """The part that proposers have in common whose proposals are computed in steps."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._has_proposed = False  # in the last step

    def attach(self, state: SlotState, config: CoreConfig) -> None:
        if config.max_branches:  # a tree has more than one for each place
            self.most = config.max_drafts

    def _takes_part(self, plan: StepPlan) -> bool:
        """Return whether a plan asks for proposals, or has to end those of the last step."""
        had_proposed, self._has_proposed = self._has_proposed, bool(plan.ahead)
        return had_proposed or self._has_proposed
