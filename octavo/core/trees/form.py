"""The form of drafts that are a tree: which follows which, and how it is cut into chains.

Several drafts may follow the same token, each with others behind it. At most one of them is right,
and what is behind it is verified in the same step. Drafts are numbered so that each comes behind
the one that it follows; where the likeliest come first too, the first few are a tree as well.

To compute a tree, it is cut into chains. The *main* chain begins behind the last known token, and
is as long as any: its rows are the last of the sequence's chunk. Every other chain is a *branch*,
which follows a draft of an earlier chain, or the last known token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

ROOT = -1  # in place of the draft that one follows: the last known token


class DraftTree(NamedTuple):
    """The form of some drafts; without it, each follows the one before."""

    parents: tuple[int, ...]  # of each draft: the one that it follows, or ROOT
    # Of each: how many candidates for its place the second model found likelier; (): not known.
    ranks: tuple[int, ...] = ()

    def first(self, count: int) -> DraftTree:
        """Return the form of so many drafts, the first ones."""
        return DraftTree(self.parents[:count], self.ranks[:count])

    def without(self, is_kept: Sequence[bool]) -> DraftTree:
        """Return the form of the drafts that are kept, each with the one that it follows."""
        kept = [number for number, keeps in enumerate(is_kept) if keeps]
        return reordered(self, kept)


class Chains(NamedTuple):
    """The drafts of a tree, by their numbers: those of the main chain, and those of each branch."""

    main: list[int]
    branches: list[list[int]]

    @property
    def order(self) -> list[int]:
        """The numbers of all drafts, chain after chain."""
        return [*self.main, *[number for branch in self.branches for number in branch]]


def depths_of(parents: Sequence[int]) -> list[int]:
    """Return how many drafts there are up to each one, itself included."""
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent == ROOT else depths[parent] + 1)
    return depths


def path_to(parents: Sequence[int], number: int) -> list[int]:
    """Return the drafts up to one, itself included."""
    path = []
    while number != ROOT:
        path.append(number)
        number = parents[number]
    return path[::-1]


def chains_of(parents: Sequence[int]) -> Chains:
    """Cut a tree of drafts into chains."""
    depths = depths_of(parents)
    main = path_to(parents, depths.index(max(depths)))
    is_main = dict.fromkeys(main)
    branches: list[list[int]] = []
    ending: dict[int, list[int]] = {}  # branches by their last draft
    for number, parent in enumerate(parents):
        if number in is_main:
            continue
        branch = ending.pop(parent, None)
        if branch is None:
            branches.append(branch := [])
        branch.append(number)
        ending[number] = branch
    return Chains(main, branches)


def reordered(tree: DraftTree, order: Sequence[int]) -> DraftTree:
    """Return a tree whose drafts are numbered in another order."""
    places = {number: place for place, number in enumerate(order)}
    places[ROOT] = ROOT
    parents = tuple([places[tree.parents[number]] for number in order])
    return DraftTree(parents, tuple([tree.ranks[number] for number in order] if tree.ranks else []))


def walked(parents: Sequence[int], drafts: Sequence[int], drawn: Sequence[int]) -> list[int]:
    """Return which drafts the drawn tokens are, as long as they follow each other.

    Of equal drafts behind the same one, the first counts.
    """
    walk: list[int] = []
    before = ROOT
    for token in drawn:
        pairs = enumerate(zip(parents, drafts, strict=True))
        found = next((n for n, pair in pairs if pair == (before, token)), None)
        if found is None:
            break
        walk.append(found)
        before = found
    return walk
