"""Typed deltas: the parts of an answer in order, and the protocol of parsers that find them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class TextDelta(Struct):
    """More of the answer's text."""

    text: str


class ReasoningDelta(Struct):
    """More of the text in which the model reasons before it answers."""

    text: str


class ToolCallDelta(Struct):
    """More of a call: its id and name come first and once, its arguments as they grow."""

    index: int  # among the calls of the answer
    arguments: str = ""  # JSON, as the model writes it
    name: str | None = None
    call_id: str | None = None


class FinishDelta(Struct):
    """The end of the answer; nothing follows."""

    reason: str  # "stop", "length", "repetition" or "abort"
    stop: int | str | None = None  # the stop string or stop token; None for an EOS


Delta = TextDelta | ReasoningDelta | ToolCallDelta | FinishDelta


class Parser(Protocol):
    """A reader of one answer, which stands between its text and its deltas.

    However the text is split, the deltas add up to the same message. A parser keeps what may still
    become a mark of its format, and yields it with the last piece at the latest. It does not raise:
    text that is not in the format is text.
    """

    @property
    def is_reasoning(self) -> bool:
        """The state behind what was fed last: True inside the reasoning."""

    def feed(self, text: str, is_last: bool) -> Sequence[Delta]:
        """Return the deltas that this text completes; the end itself is not among them."""


class PlainText:
    """The parser of models whose answers are text alone."""

    is_reasoning = False

    def feed(self, text: str, is_last: bool) -> Sequence[Delta]:
        return (TextDelta(text),) if text else ()
