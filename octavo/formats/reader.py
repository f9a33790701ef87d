"""A reader of text that comes in pieces, for parsers that are written as generators.

A parser yields where it needs more text. Every decision depends on the text alone and never on how
it was split, and a character is looked at a bounded number of times.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]

# The most characters of a call that are held back until its name is known.
MAX_HELD_CHARACTERS = 1 << 16
SPACE = " \t\r\n"
_NO_SPACE = re.compile(r"[^ \t\r\n]")


class MismatchError(Exception):
    """The text is not in the format."""


class Marks:
    """Some strings to search for; where several match, the first place and the longest win."""

    __slots__ = ("_first", "_longest", "_pattern", "texts")

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = tuple(sorted({text for text in texts if text}, key=lambda text: -len(text)))
        self._pattern = re.compile("|".join(map(re.escape, self.texts)) or r"(?!)")
        first = "".join(sorted({re.escape(text[0]) for text in self.texts}))
        self._first = re.compile(f"[{first}]" if first else r"(?!)")
        self._longest = max(map(len, self.texts), default=0)

    def find(self, text: str, at: int, *, is_ended: bool) -> tuple[int, str]:
        """Return the place up to which no mark begins, and the mark that stands there, if any.

        Without a mark, what follows the place may still become one.
        """
        found = self._pattern.search(text, at)
        place, mark = (found.start(), found.group()) if found else (len(text), "")
        if is_ended:
            return place, mark
        begin = max(at, len(text) - self._longest + 1)
        while maybe := self._first.search(text, begin, place + 1):
            rest = text[maybe.start() :]
            if any(len(rest) < len(one) and one.startswith(rest) for one in self.texts):
                return maybe.start(), ""
            begin = maybe.end()
        return place, mark


class Reader:
    """The text that has come and is not read yet."""

    __slots__ = ("_at", "_held", "_text", "is_ended")

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._held: int | None = None  # where the text begins that may be read again
        self.is_ended = False

    def push(self, text: str, is_last: bool) -> None:
        """Append text, and forget what needs no more to be kept."""
        begin = self._at if self._held is None else self._held
        self._text = self._text[begin:] + text
        self._at -= begin
        if self._held is not None:
            self._held = 0
        self.is_ended = is_last

    # What was read may turn out to be no call: it is held until that is decided.

    def hold(self) -> None:
        """Keep the text from here on, until `release`."""
        self._held = self._at

    def rewind(self) -> None:
        """Return to where `hold` was called."""
        assert self._held is not None
        self._at = self._held

    def release(self) -> str:
        """Keep nothing more; return what was read since `hold`."""
        if self._held is None:
            return ""
        text = self._text[self._held : self._at]
        self._held = None
        return text

    def take(self, count: int) -> str:
        """Read so many characters, which have come."""
        end = self._at + count
        if self._held is not None and end - self._held > MAX_HELD_CHARACTERS:
            self._at = self._held + MAX_HELD_CHARACTERS
            raise MismatchError
        text = self._text[self._at : end]
        self._at = end
        return text

    def peek(self, count: int = 1) -> Steps[str]:
        """Return the next characters without reading them; fewer at the end of the text."""
        while len(self._text) - self._at < count and not self.is_ended:
            yield
        return self._text[self._at : self._at + count]

    def is_at(self, text: str) -> Steps[bool]:
        """Return whether this text follows; read nothing."""
        while True:
            if self._text.startswith(text, self._at):
                return True
            rest = self._text[self._at : self._at + len(text)]
            if self.is_ended or not text.startswith(rest):
                return False
            yield

    def skip(self, text: str) -> Steps[bool]:
        """Read this text if it follows; return whether it did."""
        if (yield from self.is_at(text)):
            self.take(len(text))
            return True
        return False

    def expect(self, text: str) -> Steps[None]:
        """Read this text; raise MismatchError if another follows."""
        if not (yield from self.skip(text)):
            raise MismatchError

    def space(self) -> Steps[str]:
        """Read white space and return it."""
        parts = []
        while True:
            found = _NO_SPACE.search(self._text, self._at)
            end = found.start() if found else len(self._text)
            parts.append(self.take(end - self._at))
            if found or self.is_ended:
                return "".join(parts)
            yield

    def pieces(self, pieces: Iterable[str]) -> Steps[None]:
        """Read these strings one after the other; white space around each is optional."""
        for piece in pieces:
            if piece.strip():
                yield from self.space()
                yield from self.expect(piece.strip())

    def until(self, marks: Marks, emit: Callable[[str], object]) -> Steps[str]:
        """Pass text on up to one of the marks; read and return it, or return "" at the end."""
        while True:
            place, mark = marks.find(self._text, self._at, is_ended=self.is_ended)
            if place > self._at:
                emit(self.take(place - self._at))
            if mark:
                return self.take(len(mark))
            if self.is_ended:
                return ""
            yield

    def run(self, pattern: re.Pattern[str], emit: Callable[[str], object]) -> Steps[str]:
        """Pass text on up to a character that the pattern matches; return it unread, or ""."""
        while True:
            found = pattern.search(self._text, self._at)
            end = found.start() if found else len(self._text)
            if end > self._at:
                emit(self.take(end - self._at))
            if found:
                return self._text[end]
            if self.is_ended:
                return ""
            yield

    def word(self, pattern: re.Pattern[str]) -> Steps[str]:
        """Read and return the characters up to one that the pattern matches."""
        parts: list[str] = []
        yield from self.run(pattern, parts.append)
        return "".join(parts)
