"""Predicted outputs: drafts are what a text of the client has next, as long as the answer follows.

The answer is expected to begin where the predicted text begins. Where it departs, its place is
looked for again with each new token: behind the place that was lost, by the last two tokens or
more; then within the next few tokens by one; and right behind a departure it is taken for one
token in place of another. Such guesses have rates of their own, as short matches have, so that a
text which does not help is soon not followed any more.

The index of a text is made once for all answers that follow it at a time. Texts and indices take
17 bytes for each token, and all together have at most `MOST_TOKENS`: 72 MB.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from octavo.backends.base import Ints
from octavo.runner.speculate.proposer import NOTHING, Proposal
from octavo.runner.speculate.rates import Rates

# The rates that are assumed at first; see `Rates`. At 0, one token was taken for another.
FIRST_RATES = (0.35, 0.35, 0.55, 0.65, 0.7, 0.75, 0.8, 0.8, 0.85, *(0.9,) * 6, 0.95)
MOST_TOKENS = 1 << 22  # of all texts that are followed; more of them are not
MOST_REPLAYED = 256  # tokens of an answer that goes on after a preemption
_BEGIN = 4  # tokens that the beginning of the answer is taken to match
_NEAR = 32  # tokens behind the lost place among which one token suffices to find it again
_MOST_PLACES = 8  # that are compared, on either side of the lost place
_MOST_COMPARED = 16  # tokens at each
_LOST = -1


class PredictedText:
    """A predicted text, and the places behind each of its pairs of tokens."""

    __slots__ = ("__weakref__", "keys", "places", "tokens")

    def __init__(self, tokens: array[int]) -> None:
        self.tokens = tokens
        numbers = np.frombuffer(tokens, np.int32)
        pairs = numbers[:-1].astype(np.int64) << 32 | numbers[1:]
        order = _order_of_pairs(numbers)
        self.keys = array("q", pairs[order].tobytes())  # the pairs, sorted
        self.places = array("i", (order + 2).astype(np.int32).tobytes())


def _order_of_pairs(tokens: Ints) -> NDArray[np.int64]:
    """Return the places of all pairs of neighbours, in the order of the pairs.

    The engine waits for it. To sort by sixteen bits at a time takes a third of the time that it
    takes to compare pairs.
    """
    order = np.arange(max(0, len(tokens) - 1))
    for part in (tokens[1:], tokens[:-1]):
        for shift in (0, 16):
            digits = (part >> shift).astype(np.uint16)
            if not shift or digits.any():
                order = order[np.argsort(digits[order], kind="stable")]
    return order


class PredictedTexts:
    """The texts that are followed now, each of them once; a bound limits all together."""

    def __init__(self) -> None:
        self._texts: WeakValueDictionary[bytes, PredictedText] = WeakValueDictionary()

    def find(self, tokens: array[int]) -> PredictedText | None:
        """Return the text with these tokens, a new one if there is room for it; else None."""
        name = blake2b(tokens).digest()
        text = self._texts.get(name)
        if text is None:
            num_tokens = sum(len(each.tokens) for each in self._texts.values())
            if num_tokens + len(tokens) > MOST_TOKENS:
                return None
            text = self._texts[name] = PredictedText(tokens)
        return text


class Prediction:
    """The place in a predicted text that one answer has reached."""

    __slots__ = ("_anchor", "_length", "_rates", "_recent", "_source", "_text", "num_known")

    def __init__(self, text: PredictedText, num_prompt: int, answer: Sequence[int] = ()) -> None:
        """Begin with the first token of an answer; of one that goes on, with its last tokens.

        What is looked for from there is looked for near the same place of the text.
        """
        skipped = max(0, len(answer) - MOST_REPLAYED)
        self.num_known = num_prompt + skipped
        self._text = text
        self._rates = Rates(FIRST_RATES)
        self._recent: list[int] = []  # the last tokens of the answer
        self._anchor = min(skipped, len(text.tokens))  # the place behind which it is looked for
        # The place of the next token.
        self._source = 0 if text.tokens and not skipped else _LOST
        self._length = _BEGIN  # tokens that match before it
        self.extend(answer[skipped:])

    def extend(self, new: Iterable[int]) -> None:
        """Follow new tokens of the answer."""
        text, recent = self._text.tokens, self._recent
        for token in new:
            self.num_known += 1
            recent.append(token)
            source, length = self._source, self._length
            if source != _LOST:
                is_right = text[source] == token
                self._rates.score(length, is_right=is_right)
                if is_right:
                    self._anchor = source = source + 1
                    self._source = source if source < len(text) else _LOST
                    self._length = length + 1
                    continue
                if length:
                    self._anchor = source
            self._find(may_guess=source != _LOST and length > 0)
        if len(recent) > 2 * _MOST_COMPARED:
            del recent[:-_MOST_COMPARED]

    def draft(self, most: int) -> Proposal:
        """Return what the predicted text has next."""
        source = self._source
        if source == _LOST:
            return NOTHING
        tokens = self._text.tokens[source : source + most]
        chances = self._rates.chances(self._length, len(tokens))
        return Proposal(tokens[: len(chances)], chances)

    def _find(self, *, may_guess: bool) -> None:
        """Look for the place of the next token."""
        recent, anchor, text = self._recent, self._anchor, self._text.tokens
        self._source = _LOST
        if len(recent) > 1:
            self._source, self._length = self._find_pair(recent[-2] << 32 | recent[-1])
        if self._source == _LOST:
            near = text[anchor : anchor + _NEAR]
            if recent[-1] in near:
                self._source, self._length = anchor + near.index(recent[-1]) + 1, 1
            elif may_guess:
                self._source, self._length = anchor + 1, 0
        if self._source >= len(text):
            self._source = _LOST

    def _find_pair(self, key: int) -> tuple[int, int]:
        """Return the place behind two tokens with the most tokens that match before it.

        Of equal ones, the first behind the lost place.
        """
        keys, order = self._text.keys, self._text.places
        begin = bisect_left(keys, key)
        if begin == len(keys) or keys[begin] != key:
            return _LOST, 0
        end = bisect_right(keys, key, begin)
        middle = bisect_left(order, self._anchor, begin, end)
        places = order[middle : min(end, middle + _MOST_PLACES)]
        places += order[max(begin, middle - _MOST_PLACES) : middle]
        best, most = _LOST, 0
        for place in places:
            count = self._num_equal(place)
            if count > most:
                best, most = place, count
        return best, most

    def _num_equal(self, place: int) -> int:
        """Return how many of the last tokens are those before a place."""
        recent, text = self._recent, self._text.tokens
        count = 0
        for token in reversed(recent[-_MOST_COMPARED:]):
            if count == place or text[place - count - 1] != token:
                break
            count += 1
        return count
