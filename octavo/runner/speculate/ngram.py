"""Prompt lookup: proposes what followed the same tokens earlier in the sequence.

A match is an earlier place that was preceded by the tokens which are now the newest ones. While
the text goes on as it did there, the match grows. When the text departs from it, the longest of
the last `longest` … `shortest` tokens that occurred before give the next match.

Every new token shows whether the match had predicted it, whether drafts were sent or not, which
gives the chances of the next drafts (rates.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from octavo.backends.base import Ints
from octavo.core.plan import NewSlot
from octavo.runner.speculate.proposer import (
    NOTHING,
    DraftSettings,
    KeepsNothingShared,
    Proposal,
    Turn,
)
from octavo.runner.speculate.rates import Rates

# The rates of right predictions that are assumed at first, by the tokens that match: 0, 1, …, and
# the last for all longer matches. They lie between those that the answers of SmolLM2-135M showed
# where they repeat the prompt, and those of ordinary ones (benchmarks/speculation.py).
FIRST_RATES = (0.0, 0.2, 0.5, 0.6, 0.7, 0.75, 0.75, 0.8, 0.85, *(0.9,) * 6, 0.95)
_MOST_PLACES = 1 << 14  # of an index: memory of a slot is bounded, however long its sequence
_MULTIPLIER, _SPREAD, _WORD = 0x9E3779B1, 0x85EBCA6B, 0xFFFFFFFF


class NgramProposer(KeepsNothingShared):
    """A proposer that needs no model: it keeps the places of earlier n-grams of each slot."""

    def __init__(self, shortest: int, longest: int, most: int, max_model_len: int) -> None:
        self.most = most
        self._shortest, self._longest = shortest, longest
        self._num_places = min(_MOST_PLACES, 1 << max_model_len.bit_length())
        self._histories: dict[int, History] = {}

    def open(self, new: NewSlot) -> None:
        self._histories[new.slot] = History(self._shortest, self._longest, self._num_places)

    def free(self, slot: int) -> None:
        del self._histories[slot]

    def propose(self, turns: Sequence[Turn]) -> Sequence[Proposal]:
        proposals = []
        for turn in turns:
            history = self._histories[turn.slot]
            history.extend(turn.tokens[len(history.tokens) :])
            proposals.append(history.draft(turn.most))
        return proposals


def make(settings: DraftSettings, max_model_len: int) -> NgramProposer:
    """Make the proposer that the settings name `ngram`."""
    lookup = settings.prompt_lookup_min, settings.prompt_lookup_max
    return NgramProposer(*lookup, settings.most_tokens, max_model_len)


class History:
    """The known tokens of a slot, the places of their n-grams, and the present match."""

    def __init__(self, shortest: int, longest: int, num_places: int) -> None:
        self.tokens = array("i")
        self.rates = Rates(FIRST_RATES)
        self._source = 0  # where the match goes on; 0: there is none
        self._num_matched = 0  # tokens of the match so far
        self._shortest, self._longest = shortest, longest
        # For each size, by hash: the position after the last n-gram with that hash.
        self._places = [array("i", bytes(4 * num_places)) for _ in range(shortest, longest + 1)]
        self._shift = 33 - num_places.bit_length()

    def extend(self, new: Ints) -> None:
        """Append tokens: first the whole prompt, later a few at a time."""
        if not self.tokens and len(new):
            self._begin(new[:-1])
            new = new[-1:]
        for token in new.tolist():
            if self._source:
                self._score(token)
            self.tokens.append(token)
            self._enter()

    def draft(self, most: int) -> Proposal:
        """Return what followed the match; where that is the end, the drafts themselves go on."""
        source = self._source
        if not source:
            return NOTHING
        chances = self.rates.chances(self._num_matched, most)
        end = source + len(chances)
        drafts = self.tokens[source:end].tolist()
        for index in range(len(chances) - len(drafts)):
            drafts.append(drafts[index])
        return Proposal(drafts, chances)

    def _begin(self, tokens: Ints) -> None:
        """Enter the n-grams of the first tokens all at once."""
        num_known = len(tokens)
        self.tokens.frombytes(tokens.astype(np.int32).tobytes())
        for size, places in enumerate(self._places, self._shortest):
            hashes = np.zeros(max(0, num_known - size + 1), np.uint32)
            for offset in range(size if len(hashes) else 0):
                part = tokens[size - 1 - offset : num_known - offset].astype(np.uint32)
                hashes = hashes * np.uint32(_MULTIPLIER) + part
            mixed = (hashes ^ (hashes >> np.uint32(15))) * np.uint32(_SPREAD)
            indices = mixed >> np.uint32(self._shift)
            # Of equal indices, the last assignment counts.
            np.frombuffer(places, np.int32)[indices] = np.arange(size, size + len(hashes))

    def _score(self, token: int) -> None:
        """Compare a new token with the match's prediction; a wrong one ends the match."""
        is_right = self.tokens[self._source] == token
        self.rates.score(self._num_matched, is_right=is_right)
        if is_right:
            self._num_matched += 1
            self._source += 1
        else:
            self._source = 0

    def _enter(self) -> None:
        """Enter the n-grams that the last token ends; without a match, look for the longest."""
        tokens, shortest, shift = self.tokens, self._shortest, self._shift
        end = len(tokens)
        has_match = self._source > 0
        value = size = 0
        for token in tokens[: -self._longest - 1 : -1]:
            value = (value * _MULTIPLIER + token) & _WORD
            size += 1
            if size < shortest:
                continue
            places = self._places[size - shortest]
            index = (((value ^ (value >> 15)) * _SPREAD) & _WORD) >> shift
            place = places[index]
            places[index] = end
            if place and not has_match and tokens[place - size : place] == tokens[end - size :]:
                self._source, self._num_matched = place, size
