"""The interface of proposers: each proposes drafts of the tokens that come next.

A proposer runs after a step's results are collected, and knows the tokens of each slot. Whatever it
proposes, the text is the same: the next step verifies each draft against the token that it would
have drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from octavo.backends.base import Ints
from octavo.core.plan import NewSlot
from octavo.core.trees.form import DraftTree


class Turn(NamedTuple):
    """A slot that has sampled in this step, and may get drafts for its next tokens."""

    slot: int
    tokens: Ints  # all known tokens: a view, valid until `propose` returns
    most: int  # drafts that could be verified


class Proposal(NamedTuple):
    """Drafts of the tokens that may follow, and how probably each is right with all before it.

    The chances never rise. With them, the core sends as many drafts as gain more than they cost;
    without any, it sends as many as there is room for.
    """

    tokens: Sequence[int] = ()
    chances: Sequence[float] = ()
    tree: DraftTree | None = None  # their form, each behind the one that it follows; None: a chain

    def first(self, count: int) -> Proposal:
        """Return so many drafts of these, the likeliest."""
        if count >= len(self.tokens):
            return self
        tree = None if self.tree is None else self.tree.first(count)
        return Proposal(self.tokens[:count], self.chances[:count], tree)

    def without(self, is_kept: Sequence[bool]) -> Proposal:
        """Return the drafts that are kept, each with the one that it follows."""
        if all(is_kept):
            return self
        kept = [number for number, keeps in enumerate(is_kept) if keeps]
        return Proposal(
            [self.tokens[number] for number in kept],
            [self.chances[number] for number in kept] if self.chances else (),
            None if self.tree is None else self.tree.without(is_kept),
        )


NOTHING = Proposal()


class DraftSettings(Protocol):
    """The settings of speculation that proposers are made by."""

    @property
    def most_tokens(self) -> int: ...
    @property
    def prompt_lookup_max(self) -> int: ...
    @property
    def prompt_lookup_min(self) -> int: ...
    @property
    def suffix_decoding_max_tree_depth(self) -> int: ...
    @property
    def suffix_decoding_max_cached_requests(self) -> int: ...
    @property
    def suffix_decoding_max_spec_factor(self) -> float: ...
    @property
    def suffix_decoding_min_token_prob(self) -> float: ...


class Proposer(Protocol):
    """A source of drafts. It keeps what it knows of a slot from `open` until `free`."""

    @property
    def most(self) -> int:
        """The most drafts that it proposes for a slot in one step."""

    def open(self, new: NewSlot) -> None:
        """Begin with a sequence that has got a slot."""

    def free(self, slot: int) -> None:
        """Forget the sequence of this slot."""

    def forget(self) -> None:
        """Forget what it keeps beyond the requests: the prefix cache was emptied."""

    def propose(self, turns: Sequence[Turn]) -> Sequence[Proposal]:
        """Return a proposal for each turn, in order."""


class KeepsNothingShared:
    """The part of proposers all of whose knowledge is of open requests."""

    def forget(self) -> None:
        """Keep everything: nothing goes beyond the requests."""
