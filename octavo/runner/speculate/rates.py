"""How often matches predict the next token, measured in one sequence by their length.

Every new token shows whether the present match had predicted it, whether drafts were sent or not.
So the rates are known at no cost. Those of longer matches are those of later drafts too: a draft
is reached only if those before it are right, and have made the match longer.
"""

from __future__ import annotations

from collections.abc import Sequence

_GAIN = 0.125  # weight of the newest prediction in its rate
LEAST_CHANCE = 0.02  # of a draft: less probable ones are not proposed


class Rates:
    """The rates of right predictions, by the tokens that match; the last for all longer matches."""

    __slots__ = ("values",)

    def __init__(self, first: Sequence[float]) -> None:
        self.values = list(first)

    def score(self, length: int, *, is_right: bool) -> None:
        """Count a prediction of a match of so many tokens."""
        values = self.values
        if length >= len(values):
            length = len(values) - 1
        values[length] += (is_right - values[length]) * _GAIN

    def chances(self, length: int, most: int, least: float = LEAST_CHANCE) -> list[float]:
        """Return how probable it is that one draft is right, two are, and so on, up to `most`.

        Those less probable than `least` are left out.
        """
        values = self.values
        longest = len(values) - 1
        found = []
        chance = 1.0
        for _ in range(most):
            chance *= values[length if length < longest else longest]
            if chance < least:
                break
            found.append(chance)
            length += 1
        return found
