"""A proposer of trees in which the right text is in other branches from step to step."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.core.plan import NewSlot
from octavo.core.trees.form import ROOT, DraftTree
from octavo.runner.speculate.proposer import NOTHING, Proposal, Turn

# The drafts of a tree: which each follows, and whether it is what comes after that in the text.
FORMS: tuple[tuple[tuple[int, bool], ...], ...] = (
    # A longer wrong chain, and the right one beside it.
    ((ROOT, False), (0, False), (1, False), (2, False), (ROOT, True), (4, True), (5, True)),
    # Two chains behind the first draft.
    ((ROOT, True), (0, False), (1, False), (2, False), (0, True), (4, True), (5, True)),
    # A right chain with a wrong draft beside each of its own.
    ((ROOT, False), (ROOT, True), (1, False), (1, True), (3, False), (3, True)),
    # Branches of branches, none in the main chain.
    (
        *((ROOT, False), (0, False), (1, False), (2, False), (3, False)),
        *((ROOT, True), (5, False), (5, True), (7, False), (7, True), (9, True), (9, False)),
    ),
)


class TreesOfText:
    """A proposer for one request, whose whole text it knows."""

    most = 64

    def __init__(self, right: Sequence[int], num_prompt: int, vocabulary: int) -> None:
        self._right, self._num_prompt, self._vocabulary = right, num_prompt, vocabulary

    def open(self, new: NewSlot) -> None:
        pass

    def free(self, slot: int) -> None:
        pass

    def forget(self) -> None:
        pass

    def propose(self, turns: Sequence[Turn]) -> list[Proposal]:
        return [self._tree(len(turn.tokens) - self._num_prompt).first(turn.most) for turn in turns]

    def _tree(self, num_output: int) -> Proposal:
        """Return a tree behind so many tokens, as far as the text goes."""
        form = FORMS[(num_output + num_output // 7) % len(FORMS)]
        tokens: list[int] = []
        depths: list[int] = []
        for number, (parent, is_right) in enumerate(form):
            depths.append(0 if parent == ROOT else depths[parent] + 1)
            place = num_output + depths[number]
            if place >= len(self._right):
                break
            wrong = 0 if is_right else 1 + number
            tokens.append((self._right[place % len(self._right)] + wrong) % self._vocabulary)
        if not tokens:
            return NOTHING
        chances = [0.9 - number / 100 for number in range(len(tokens))]
        parents = tuple([parent for parent, _ in form[: len(tokens)]])
        return Proposal(tokens, chances, DraftTree(parents, (0,) * len(tokens)))
