"""The tree that a second model proposes for one sequence, as it grows place by place.

The model gives several candidates for each place, the likeliest first. How often the right token is
the first of them, the second and so on is measured, by place. A model that goes on from what it has
proposed itself follows its first candidate alone: the others are leaves. Where nothing depends on
what was proposed before, each may be followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from octavo.core.trees.form import ROOT, DraftTree, depths_of


class Offer(NamedTuple):
    """A draft that could be proposed."""

    chance: float  # that it is right with all before it
    parent: int  # the draft that it follows, by its number; ROOT: the last token
    rank: int  # among the candidates of its place


class ProposedTree:
    """The drafts that are chosen so far; numbers are in the order of choice."""

    def __init__(
        self, rates: Sequence[Sequence[float]], most_places: int, *, width: int, forks: bool
    ) -> None:
        self._rates = rates
        self._most_places = most_places
        self._width, self._forks = width, forks
        self._drafts: list[Offer] = []
        self._open = [ROOT]  # drafts of the last place that others may follow
        self.num_places = 0

    @property
    def num_drafts(self) -> int:
        """The number of drafts chosen so far."""
        return len(self._drafts)

    def offers(self, least: float, most: int, most_aside: int) -> list[Offer]:
        """Return the drafts of the next place that are likelier than `least`, the likeliest first.

        They are so many at most. All but one for each place chosen so far, and one of the next, are
        branches.
        """
        place = self.num_places
        if place >= self._most_places:
            return []
        offers = []
        for parent in self._open:
            before = 1.0 if parent == ROOT else self._drafts[parent].chance
            for rank, rate in enumerate(self._rates[place][: self._width]):
                if before * rate > least:
                    offers.append(Offer(before * rate, parent, rank))
        offers.sort(key=_by_chance)
        most_aside -= len(self._drafts) - place
        return offers[: max(0, min(most - len(self._drafts), 1 + most_aside))]

    def add(self, offers: Sequence[Offer]) -> None:
        """Choose these drafts of the next place."""
        numbers = range(len(self._drafts), len(self._drafts) + len(offers))
        self._drafts.extend(offers)
        self._open = [
            number
            for number, offer in zip(numbers, offers, strict=True)
            if self._forks or offer.rank == 0
        ]
        self.num_places += bool(offers)

    def cut(self, num_places: int) -> None:
        """Leave out the drafts of all places but the first so many."""
        depths = depths_of([draft.parent for draft in self._drafts])
        self._drafts = [
            each for each, depth in zip(self._drafts, depths, strict=True) if depth <= num_places
        ]
        self.num_places = min(self.num_places, num_places)

    def leave_out(self, least: float) -> None:
        """Leave out all other candidates than the likeliest that are no likelier than `least`.

        What follows one of them is less likely still.
        """
        places: dict[int, int] = {ROOT: ROOT}
        is_first = {ROOT: True}
        kept: list[Offer] = []
        for number, draft in enumerate(self._drafts):
            is_first[number] = is_first[draft.parent] and draft.rank == 0
            if is_first[number] or draft.chance > least:
                places[number] = len(kept)
                kept.append(draft._replace(parent=places[draft.parent]))
        self._drafts = kept

    def made(self, most_places: int) -> tuple[tuple[float, ...], DraftTree | None]:
        """Return the chances of the drafts of so many places, and their form if it is no chain.

        The likeliest come first, each behind the one that it follows.
        """
        depths = depths_of([draft.parent for draft in self._drafts])
        kept = [number for number, depth in enumerate(depths) if depth <= most_places]
        kept.sort(key=lambda number: -self._drafts[number].chance)
        places = {ROOT: ROOT, **{number: place for place, number in enumerate(kept)}}
        drafts = [self._drafts[number] for number in kept]
        parents = tuple([places[draft.parent] for draft in drafts])
        ranks = tuple([draft.rank for draft in drafts])
        chances = tuple([draft.chance for draft in drafts])
        is_chain = not any(ranks) and all(p == at - 1 for at, p in enumerate(parents))
        return chances, None if is_chain else DraftTree(parents, ranks)


class ProposedChain(ProposedTree):
    """The same of a model that gives one candidate for each place, in a third of the time."""

    def __init__(self, rates: Sequence[Sequence[float]], most_places: int) -> None:
        super().__init__(rates, most_places, width=1, forks=False)
        self._chances: list[float] = []

    @property
    def num_drafts(self) -> int:
        return self.num_places

    def offers(self, least: float, most: int, most_aside: int) -> list[Offer]:
        place = self.num_places
        if place >= self._most_places or place >= most:
            return []
        chance = self._rates[place][0]
        if place:
            chance *= self._chances[place - 1]
        return [Offer(chance, place + ROOT, 0)] if chance > least else []

    def add(self, offers: Sequence[Offer]) -> None:
        if not offers:
            self._most_places = self.num_places  # nothing may follow any more
            return
        self._chances.append(offers[0].chance)
        self.num_places += 1

    def cut(self, num_places: int) -> None:
        del self._chances[num_places:]
        self.num_places = len(self._chances)

    def leave_out(self, least: float) -> None:
        pass  # there are no other candidates

    def made(self, most_places: int) -> tuple[tuple[float, ...], DraftTree | None]:
        return tuple(self._chances[:most_places]), None


def _by_chance(offer: Offer) -> float:
    return -offer.chance
