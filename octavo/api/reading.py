"""How the text of an answer is read: its parser, and the special tokens that the parser needs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from octavo.formats.deltas import (
    Delta,
    Parser,
    PlainText,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)

log = logging.getLogger(__name__)


class Reading(Struct, frozen=True):
    """A way to read answers. Each answer gets a parser of its own."""

    make_parser: Callable[[], Parser]
    kept: frozenset[int] = frozenset()  # special tokens whose text the parser needs
    # Whether the deltas of one token stay apart from those of the next, so that they depend on
    # nothing but the tokens. Otherwise neighbours of one kind are joined.
    keeps_apart: bool = False


MOST_FRESH = 512  # deltas that `AnswerReader` joins at once


class AnswerReader:
    """The reader of one answer: it takes the text of one token after the other.

    So the reasoning's tokens can be counted, and the count does not depend on how the tokens come.
    Deltas that are not taken before the end are joined piece by piece: the end is no long work.
    """

    def __init__(self, parser: Parser, *, keeps_apart: bool = False) -> None:
        self._parser = parser
        self._keeps_apart = keeps_apart
        self._deltas: list[Delta] = []  # not taken yet
        self._earlier: list[Delta] = []  # before those, and joined already
        self._has_ended = False
        self.num_reasoning = 0  # tokens behind which the parser is inside the reasoning

    def push(self, text: str) -> None:
        """Read the text that one token adds."""
        self._feed(text, is_last=False)
        self.num_reasoning += self._parser.is_reasoning

    def finish(self, text: str) -> None:
        """Read the rest of the text, which no token adds."""
        if not self._has_ended:
            self._has_ended = True
            self._feed(text, is_last=True)

    @property
    def num_new(self) -> int:
        """The number of deltas that were not taken yet; none is joined if tokens stay apart."""
        return len(self._deltas)

    def take(self) -> list[Delta]:
        """Return what is new, with neighbours of one kind joined unless tokens stay apart."""
        deltas, self._deltas = self._deltas, []
        if self._earlier:
            deltas, self._earlier = self._earlier + deltas, []
        return deltas if self._keeps_apart or len(deltas) < 2 else list(_joined(deltas))

    def _feed(self, text: str, *, is_last: bool) -> None:
        if len(self._deltas) >= MOST_FRESH and not self._keeps_apart:
            self._earlier += _joined(self._deltas)
            self._deltas = []
        try:
            self._deltas += self._parser.feed(text, is_last)
        except Exception:  # of a user's description, or a bug: it must not cost the answer
            log.exception("a parser of answers has failed; the rest of the answer is plain text")
            self._parser = PlainText()
            self._deltas += self._parser.feed(text, is_last)


def _joined(deltas: Sequence[Delta]) -> Iterator[Delta]:
    """Yield the deltas, with the texts of neighbours of one kind in one delta."""
    same: list[Delta] = []
    for delta in deltas:
        if same and not _continues(same[0], delta):
            yield _join(same)
            same = []
        same.append(delta)
    if same:
        yield _join(same)


def _continues(first: Delta, delta: Delta) -> bool:
    if isinstance(delta, ToolCallDelta):
        is_same_call = isinstance(first, ToolCallDelta) and first.index == delta.index
        return is_same_call and delta.name is None and delta.call_id is None
    return isinstance(delta, TextDelta | ReasoningDelta) and type(delta) is type(first)


def _join(same: Sequence[Delta]) -> Delta:
    first = same[0]
    if len(same) == 1:
        return first
    match first:
        case TextDelta():
            return TextDelta(_text(same))
        case ReasoningDelta():
            return ReasoningDelta(_text(same))
        case ToolCallDelta():
            arguments = "".join([each.arguments for each in _calls(same)])
            return ToolCallDelta(first.index, arguments, first.name, first.call_id)
    raise AssertionError("nothing continues an end")


def _text(deltas: Iterable[Delta]) -> str:
    return "".join([each.text for each in deltas if isinstance(each, TextDelta | ReasoningDelta)])


def _calls(deltas: Iterable[Delta]) -> list[ToolCallDelta]:
    return [each for each in deltas if isinstance(each, ToolCallDelta)]
