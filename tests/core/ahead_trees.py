"""Proposals of a second model that a test decides the number of."""

from __future__ import annotations

from collections.abc import Callable

from octavo.core.pace.ahead_counts import AheadCounts
from octavo.core.pace.proposed_tree import ProposedTree
from octavo.core.sequence import Sequence

Counts = Callable[[AheadCounts, list[Sequence], int, int], list[int]]
Trees = Callable[..., list[ProposedTree]]


def trees_by(counts: Counts) -> Trees:
    """Return what takes the place of `AheadCounts._trees`: all there is room for, in some places.

    Without candidates beside the likeliest these are chains of so many proposals.
    """

    def trees(
        self: AheadCounts,
        sampling: list[Sequence],
        num_rows: int,
        num_read: int,
        num_more: int = 0,
    ) -> list[ProposedTree]:
        made = []
        asked = counts(self, sampling, num_rows, num_read)
        for sequence, count in zip(sampling, asked, strict=True):
            count = min(count, self._most)
            tree = self._tree(sequence, count)
            for _ in range(count):
                tree.add(tree.offers(-1.0, self._most_drafts, self._most_branches))
            made.append(tree)
        return made

    return trees
