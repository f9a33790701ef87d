"""Drafts for the slots that have sampled: proposed, checked, and no more than a step has room for.

The core plans running sequences in order of age. Without a bound, the drafts of the older ones
could take up a step's tokens before the younger ones had got theirs. So drafts share what is left
of the step after one token for each open slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from octavo.backends.base import Ints
from octavo.core.config import ConfigError, CoreConfig
from octavo.runner.speculate.proposer import Proposer, Turn


class Drafting:
    """A proposer and the open slots that it serves."""

    def __init__(self, proposer: Proposer, vocabulary: int, config: CoreConfig) -> None:
        if proposer.hidden_layers:
            raise ConfigError(
                f"the proposer needs hidden states of the layers {proposer.hidden_layers}, and no "
                "backend keeps hidden states for proposers; choose a proposer that needs none"
            )
        self._proposer = proposer
        self._vocabulary = vocabulary
        self._most = config.max_drafts
        self._budget = config.max_num_batched_tokens
        self._open: set[int] = set()

    def open(self, slot: int) -> None:
        """Begin with a sequence that has got this slot."""
        self._open.add(slot)
        self._proposer.open(slot)

    def free(self, slot: int) -> None:
        """Forget the sequence of this slot."""
        self._open.remove(slot)
        self._proposer.free(slot)

    def propose(
        self, slots: Iterable[int], tokens: Callable[[int], Ints]
    ) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return drafts for those of these open slots that get some; `tokens` has their text.

        An invalid id ends a draft.
        """
        sampled = list(slots)
        if not sampled:
            return ()
        # Without room the proposer is asked for none, and still sees the new tokens.
        most = max(0, min(self._most, (self._budget - len(self._open)) // len(sampled)))
        turns = [Turn(slot, tokens(slot), most) for slot in sampled]
        proposals = self._proposer.propose(turns)
        found = []
        for slot, proposal in zip(sampled, proposals, strict=True):
            drafts = self._valid(proposal[:most])
            if drafts:
                found.append((slot, drafts))
        return tuple(found)

    def _valid(self, proposal: Iterable[int]) -> tuple[int, ...]:
        drafts = []
        for token in proposal:
            if not 0 <= token < self._vocabulary:
                break
            drafts.append(token)
        return tuple(drafts)
