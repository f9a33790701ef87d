"""The budget of reasoning tokens of one text: when its end must be written, and with which tokens.

It counts beside the sampler and is no grammar: text in which anything may stand would need a mask
for every token, of the answer too. Only behind the last token of the budget a mask allows nothing
but the mark that ends the reasoning.

The state is a function of the output's tokens alone, so that it is the same after a preemption or a
restart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from octavo.core.plan import NewSlot
from octavo.core.sampling_params import Mark, ThinkingMarks

# Tokens of white space may stand before the mark that opens the reasoning. Behind so many tokens,
# a mark is part of the text, except in formats whose reasoning may begin again.
MAX_BEFORE = 8


class Thought:
    """The reasoning of a text that has a budget."""

    __slots__ = ("_budget", "_marks", "_num_tokens", "_tail", "_tail_length", "is_open", "is_over")

    def __init__(self, budget: int, marks: ThinkingMarks) -> None:
        self._budget = budget  # what is left of it
        self._marks = marks
        self._num_tokens = 0  # of the output
        self._tail: Mark = ()  # the last tokens, since the reasoning has begun or ended
        self._tail_length = max(map(len, (*marks.open, *marks.close)))
        self.is_open = marks.is_open
        self.is_over = False  # no reasoning can follow

    @classmethod
    def of(cls, new: NewSlot) -> Self | None:
        """Return the state behind the known output of a sequence; None if it has no budget."""
        budget, marks = new.sampling.thinking_token_budget, new.sampling.thinking_marks
        if budget is None or marks is None:
            return None
        thought = cls(budget, marks)
        thought.advance(new.tokens[new.num_prompt :])
        return thought

    @property
    def num_free(self) -> int:
        """The number of tokens that certainly come before one that is required."""
        return max(0, self._budget) + (not self.is_open)

    @property
    def required(self) -> int | None:
        """The only token that may come next; None if every token may."""
        if not self.is_open or self._budget > 0:
            return None
        mark, tail = self._marks.close[0], self._tail
        begun = next(
            length
            for length in range(min(len(mark) - 1, len(tail)), -1, -1)
            if tail[len(tail) - length :] == mark[:length]
        )
        return mark[begun]

    def advance(self, tokens: Iterable[int]) -> None:
        """Take the next tokens of the output."""
        for token in tokens:
            if self.is_over:
                return
            self._take(token)

    def copy(self) -> Thought:
        """Return another one in the same state."""
        made = Thought(self._budget, self._marks)
        made._num_tokens, made._tail = self._num_tokens, self._tail
        made.is_open, made.is_over = self.is_open, self.is_over
        return made

    def _take(self, token: int) -> None:
        marks = self._marks
        self._num_tokens += 1
        self._tail = (*self._tail, token)[-self._tail_length :]
        self._budget -= self.is_open
        if self._ends_with(marks.close if self.is_open else marks.open):
            self.is_open = not self.is_open
            self._tail = ()
            self.is_over = not (self.is_open or marks.may_repeat)
        elif not (self.is_open or marks.may_repeat) and self._num_tokens >= MAX_BEFORE:
            self.is_over = True

    def _ends_with(self, marks: Iterable[Mark]) -> bool:
        return any(self._tail[-len(mark) :] == mark for mark in marks)
