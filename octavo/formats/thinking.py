"""Where the reasoning stands when an answer begins, and the tokens that begin and end it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum

from octavo.core.sampling_params import Mark, ThinkingMarks
from octavo.formats.description import Formats, ReasoningFormat
from octavo.formats.protocol import FormatError


class Thinking(Enum):
    """The state of the reasoning before the first token of the answer."""

    NONE = "none"  # the model may begin it
    OPEN = "open"  # the prompt has begun it
    CLOSED = "closed"  # the prompt has closed it: the model is to answer at once


def thinking_before(reasoning: ReasoningFormat | None, prompt_end: str) -> Thinking:
    """Return the state that the end of a prompt leaves; special tokens are in its text."""
    text = prompt_end.rstrip()
    if reasoning is None:
        return Thinking.CLOSED
    if any(text.endswith(mark.strip()) for mark in reasoning.open):
        return Thinking.OPEN
    if any(text.endswith(mark.strip()) for mark in reasoning.close):
        return Thinking.CLOSED
    return Thinking.NONE


class MarkTokens:
    """The tokens of a model's marks of reasoning, by which a budget is kept."""

    def __init__(
        self, formats: Formats, added: Mapping[int, str], find: Callable[[str], int | None]
    ) -> None:
        """Spell the marks with added tokens; `find` returns the token that is exactly a text."""
        self._reasoning = reasoning = formats.reasoning
        self._open: tuple[Mark, ...] = ()
        self._close: tuple[Mark, ...] = ()
        self._problem = ""
        if reasoning is None:
            self._problem = "the format in which this model writes reasoning is unknown"
            return
        ids = {text: token for token, text in added.items()}
        longest_first = sorted(map(re.escape, filter(None, ids)), key=len, reverse=True)
        pieces = re.compile(f"({'|'.join(longest_first)})") if longest_first else None

        def spelled(marks: Iterable[str]) -> tuple[Mark, ...]:
            found = [_spelled(mark.strip(), pieces, ids, find) for mark in marks]
            return tuple([mark for mark in found if mark is not None])

        self._open, self._close = spelled(reasoning.open), spelled(reasoning.close)
        if reasoning.ends_at_calls and formats.tools is not None:
            triggers = [form.trigger for form in formats.tools.forms if form.trigger]
            self._close += spelled(triggers)
        for name, marks, tokens in (
            ("opens", reasoning.open, spelled(reasoning.open[:1])),
            ("ends", reasoning.close, spelled(reasoning.close[:1])),
        ):
            if not tokens:
                self._problem = (
                    f"{marks[0].strip()!r}, which {name} this model's reasoning, is ordinary text "
                    "in its vocabulary, and can be spelled in several ways"
                )

    def force_end(self, tokens: Mark) -> None:
        """Let reasoning whose budget is spent end with these tokens, the last of which end it."""
        self._close = (tokens, *self._close)

    @property
    def is_complete(self) -> bool:
        """True if the reasoning of this model can have a budget."""
        return not self._problem

    def before(self, prompt_end: str) -> ThinkingMarks | None:
        """Return the marks of an answer to a prompt; None if it has no reasoning.

        Raise FormatError for a model whose reasoning cannot have a budget.
        """
        if self._problem or self._reasoning is None:
            raise FormatError(self._problem)
        state, may_repeat = thinking_before(self._reasoning, prompt_end), self._reasoning.may_repeat
        if state is Thinking.CLOSED and not may_repeat:
            return None
        return ThinkingMarks(self._open, self._close, state is Thinking.OPEN, may_repeat)


def _spelled(
    mark: str,
    pieces: re.Pattern[str] | None,
    ids: Mapping[str, int],
    find: Callable[[str], int | None],
) -> Mark | None:
    """Return the tokens of a mark; None if not all of it has a token of its own.

    A mark without any added token is ordinary text.
    """
    parts = [part for part in pieces.split(mark) if part] if pieces is not None else []
    if not any(part in ids for part in parts):
        return None
    tokens = []
    for part in parts:
        token = ids[part] if part in ids else find(part)
        if token is None:
            return None
        tokens.append(token)
    return tuple(tokens)
