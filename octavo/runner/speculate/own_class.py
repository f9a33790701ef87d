"""Proposes what a class of the operator's own does, and does without it once it has failed.

Its drafts are checked and bounded as all are, and each is verified, so it can spoil no text. How
often those of each place are right shows in the tokens that follow, whether they were sent or not.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterable, Sequence
from itertools import accumulate, islice
from typing import Protocol

from octavo.backends.base import Ints
from octavo.core.plan import NewSlot
from octavo.runner.speculate.proposer import NOTHING, KeepsNothingShared, Proposal, Turn
from octavo.runner.speculate.rates import LEAST_CHANCE

log = logging.getLogger(__name__)

FIRST_RATE = 0.7  # of right drafts, before any has been seen
_GAIN = 0.0625  # weight of the newest draft in the rate of its place


class OwnProposer(Protocol):
    """The methods that the operator's class must have; `octavo.named_object` finds it."""

    def propose(self, slot: int, tokens: Ints, most: int) -> Iterable[int]:
        """Return the tokens that may follow these; only the first `most` are read.

        `tokens` are all of a text, may only be read, and change after the call. A slot has one
        text at a time.
        """

    def free(self, slot: int) -> None:
        """Forget the text of this slot, which has ended."""


class OwnClassProposer(KeepsNothingShared):
    """The drafts of the operator's class; implements `Proposer`."""

    def __init__(self, own: OwnProposer, most: int) -> None:
        self.most = most
        self._own: OwnProposer | None = own  # None: it has failed
        self._last: dict[int, tuple[int, tuple[int, ...]]] = {}  # by slot: known tokens, proposed
        self._rates = [FIRST_RATE] * most  # by the place of a draft

    def open(self, new: NewSlot) -> None:
        self._last[new.slot] = (0, ())

    def free(self, slot: int) -> None:
        del self._last[slot]
        if self._own is not None:
            try:
                self._own.free(slot)
            except KeyboardInterrupt:
                raise
            except BaseException:
                self._leave_out()

    def propose(self, turns: Sequence[Turn]) -> Sequence[Proposal]:
        return [NOTHING if self._own is None else self._proposed(turn) for turn in turns]

    def _proposed(self, turn: Turn) -> Proposal:
        assert self._own is not None
        self._score(*self._last[turn.slot], turn.tokens)
        tokens = turn.tokens.view()
        tokens.flags.writeable = False
        try:
            found = self._own.propose(turn.slot, tokens, turn.most)
            drafts = (*map(operator.index, islice(found, turn.most)),)
        except KeyboardInterrupt:
            raise
        except BaseException:  # an exit, or a panic of a library in Rust, is no Exception
            self._leave_out()
            return NOTHING
        self._last[turn.slot] = (len(turn.tokens), drafts)
        chances = [*accumulate(self._rates[: len(drafts)], operator.mul)]
        num_likely = sum(chance >= LEAST_CHANCE for chance in chances)
        return Proposal(drafts[:num_likely], chances[:num_likely])

    def _score(self, num_known: int, drafts: tuple[int, ...], tokens: Ints) -> None:
        """Count which of the last drafts have turned out right, up to the first that has not."""
        for place, pair in enumerate(zip(drafts, tokens[num_known:].tolist(), strict=False)):
            is_right = pair[0] == pair[1]
            self._rates[place] += (is_right - self._rates[place]) * _GAIN
            if not is_right:
                break

    def _leave_out(self) -> None:
        """Leave the class out from now on, and log its error."""
        self._own = None
        log.exception(
            "the class of speculative_config has failed: nothing is drafted from now on, and no "
            "request is affected; mend it and start again"
        )
