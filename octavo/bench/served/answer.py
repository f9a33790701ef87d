"""The answer to one request, and what it shows: times, tokens, or an error."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_MOST_TEXT = 500  # of an error that is shown
MOST_EVENT = 1 << 22  # bytes; the rest of a longer one is not kept
_MOST_TOKENS = 1 << 40  # that a server may claim
# The parts of a chat's delta that a person sees grow.
_DELTAS = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call")


@dataclass(slots=True)
class Answer:
    """Times and tokens of one answer; the times are those of `time.perf_counter`."""

    began: float
    first: float = math.nan  # of its first token
    ended: float = math.nan
    gaps: list[float] = field(default_factory=list)  # between parts with tokens
    texts: list[str] = field(default_factory=list)
    num_parts: int = 0  # with tokens
    num_prompt_tokens: int | None = None  # as the server counts them
    num_tokens: int | None = None
    error: str = ""  # empty if it is complete

    @property
    def text(self) -> str:
        """The whole text, without reasoning and tool calls."""
        return "".join(self.texts)

    @property
    def tokens(self) -> int:
        """The number of tokens; that of the parts, if the server does not count them."""
        return self.num_parts if self.num_tokens is None else self.num_tokens

    @property
    def seconds(self) -> float:
        """The time from the request to the end of the answer."""
        return self.ended - self.began

    @property
    def first_seconds(self) -> float:
        """The time to the first token."""
        return self.first - self.began

    @property
    def token_seconds(self) -> float:
        """The mean time of each token after the first; not a number if there is no other."""
        return (self.ended - self.first) / (self.tokens - 1) if self.tokens > 1 else math.nan


class Reader:
    """A reader of the events of one answer, as completions and chats stream them."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._rest = b""
        self._last = math.nan
        self._has_ended = False

    def take(self, at: float, data: bytes) -> None:
        """Take a part of the body that came at this time."""
        if len(self._rest) > MOST_EVENT:
            self._answer.error = f"an event is longer than {MOST_EVENT:,} bytes"
            return
        self._rest += data
        for event in self._events():
            if event == b"[DONE]":
                self._has_ended = True
                continue
            try:
                self._note(at, json.loads(event))
            except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
                self._answer.error = f"an event is not understood: {_shown(event)}"

    def end(self, status: int, at: float) -> None:
        """Note the end of the response."""
        answer = self._answer
        answer.ended = at
        if status != 200:
            answer.error = f"status {status}: {_message(self._rest)}"
        elif not answer.error and not self._has_ended:
            answer.error = "the stream ended without its last event"
        elif not answer.error and not answer.tokens:
            answer.error = "the answer has no tokens"
        elif not answer.error and answer.num_parts:
            answer.ended = self._last
        elif not answer.error:  # tokens without a text, such as halves of a character
            answer.first = at

    def _events(self) -> Iterator[bytes]:
        """Yield the data of each whole event; what is none stays."""
        while True:
            line, end, rest = self._rest.partition(b"\n")
            if not end or not (not line.strip() or line.startswith((b"data:", b"event:", b":"))):
                return
            self._rest = rest
            if line.startswith(b"data:"):
                yield line[5:].strip()

    def _note(self, at: float, event: dict[str, Any]) -> None:
        answer = self._answer
        if "error" in event:
            answer.error = _message(json.dumps(event).encode())
            return
        usage = event.get("usage")
        if usage:
            answer.num_prompt_tokens = _count(usage["prompt_tokens"])
            answer.num_tokens = _count(usage.get("completion_tokens") or 0)
        choices = event.get("choices")
        if not choices or not _grows(choices[0]):
            return
        answer.texts.append(_text(choices[0]))
        answer.num_parts += 1
        if answer.num_parts == 1:
            answer.first = at
        else:
            answer.gaps.append(at - self._last)
        self._last = at


def _count(value: Any) -> int:
    """Return a number of tokens; raise ValueError if it is none."""
    if type(value) not in (int, float) or not 0 <= value <= _MOST_TOKENS:
        raise ValueError(value)
    return int(value)


def _grows(choice: dict[str, Any]) -> bool:
    """Return whether a part of an answer has something of its text."""
    delta = choice.get("delta")
    if delta is None:
        return bool(choice.get("text"))
    return any(delta.get(each) for each in _DELTAS)


def _text(choice: dict[str, Any]) -> str:
    delta = choice.get("delta")
    return str((choice.get("text") if delta is None else delta.get("content")) or "")


def _message(body: bytes) -> str:
    """Return the message of an error, or the beginning of what came instead of one."""
    try:
        error = json.loads(body)["error"]
        return printable(str(error["message"] if isinstance(error, dict) else error))[:_MOST_TEXT]
    except (ValueError, KeyError, TypeError, RecursionError):
        return _shown(body) or "no message"


def _shown(data: bytes) -> str:
    return printable(data[:_MOST_TEXT].decode("utf-8", "replace")).strip()


def printable(text: str) -> str:
    """Return a server's text without what a terminal or a picture would obey."""
    return "".join(mark if mark.isprintable() else " " for mark in text)
