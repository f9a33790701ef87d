"""The answer on its way to standard output: styled at a terminal, and else as it is."""

from __future__ import annotations

import re
import sys
from typing import TextIO

from octavo import env

_BOLD, _DIM, _CODE, _OFF = "\x1b[1m", "\x1b[2m", "\x1b[36m", "\x1b[0m"
# A model's text may contain what a terminal takes for commands.
_CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
# Beside them half of a pair, which JSON may have, and no stream can write.
_UNSHOWN = _CONTROLS | dict.fromkeys(range(0xD800, 0xE000), "\ufffd")
_FENCE = re.compile(r" {0,3}```")
_MAYBE_FENCE = re.compile(r" {0,3}`{0,2}\Z")
_HEADING = re.compile(r"#{1,6} ")
_MAYBE_HEADING = re.compile(r"#{1,6}\Z")
_MAX_HELD = 200  # characters of a line that opens or closes a block


class Markdown:
    """A text with styles for what is bold, code or a heading; no character is left out.

    The result does not depend on how the text is split.
    """

    def __init__(self) -> None:
        self._held = ""
        self._is_line_start = True
        self._is_block = False
        self._is_fence = False  # the rest of the line belongs to the mark of a block
        self._is_bold = self._is_code = self._is_heading = False
        self._before = "\n"

    def feed(self, text: str, *, is_last: bool = False) -> str:
        """Return what is certain; a mark that may go on is kept for the next piece."""
        text, self._held = self._held + text, ""
        made: list[str] = []
        at = 0
        while at < len(text):
            length = self._length(text, at, is_last=is_last)
            if length == 0:
                self._held = text[at:]
                break
            made.append(self._styled(text, at, length))
            self._before = text[at + length - 1]
            at += length
        if is_last and self._has_style:
            made.append(_OFF)
        return "".join(made)

    @property
    def _has_style(self) -> bool:
        return bool(self._style())

    def _style(self) -> str:
        if self._is_fence:
            return _DIM
        bold = _BOLD if self._is_bold or self._is_heading else ""
        return bold + (_CODE if self._is_code or self._is_block else "")

    def _length(self, text: str, at: int, *, is_last: bool) -> int:
        """Return how many characters belong together; 0 if that is not known yet."""
        if self._is_line_start:
            if not is_last and (_MAYBE_FENCE.match(text, at) or _MAYBE_HEADING.match(text, at)):
                return 0
            found = _FENCE.match(text, at)
            if found is None and not self._is_block:
                found = _HEADING.match(text, at)
            if found is not None:
                return found.end() - at
        if text[at] != "*" or self._is_block or self._is_code or self._is_fence:
            return 1
        if len(text) < at + 3 and not is_last and text[at:] in ("*", "**"):
            return 0
        return 2 if text.startswith("**", at) else 1

    def _styled(self, text: str, at: int, length: int) -> str:
        """Return some characters with the styles that begin before and end behind them."""
        part, before = text[at : at + length], self._style()
        is_line_start, self._is_line_start = self._is_line_start, part == "\n"
        if part == "\n":
            self._is_fence = self._is_bold = self._is_code = self._is_heading = False
            after = self._style()
            # A line's style does not reach into the next one.
            return (_OFF if before else "") + part + after
        if is_line_start and part.endswith("```"):
            self._is_block = not self._is_block
            self._is_fence = True
        elif is_line_start and part.endswith(" ") and part.startswith("#"):
            self._is_heading = True
        elif part == "**":
            behind = text[at + 2 : at + 3]
            if self._is_bold and not self._before.isspace():
                self._is_bold = False
                return part + _OFF + self._style()
            if not self._is_bold and behind.strip() and not self._before.isalnum():
                self._is_bold = True
        elif part == "`" and not self._is_block and not self._is_fence:
            self._is_code = not self._is_code
            if not self._is_code:
                return part + _OFF + self._style()
        after = self._style()
        change = "" if after == before else (_OFF if before else "") + after
        return change + part


class Display:
    """The place where answers are written: the text to one stream, notes to another."""

    def __init__(self, stream: TextIO | None = None, notes: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._notes = notes or sys.stderr
        self.is_terminal = self._stream.isatty()
        self._is_styled = self.is_terminal and env.shows_colours()
        self._markdown = Markdown()
        self._is_reasoning = False
        self._half = ""  # the first half of a pair of surrogates, whose second one follows
        self._last = "\n"

    def text(self, text: str) -> None:
        """Write more of the answer."""
        text = self._joined(text)
        if not text:
            return
        if self._is_reasoning:
            self._write("\n\n" if self._last != "\n" else "\n")
            self._is_reasoning = False
        if self.is_terminal:
            text = text.translate(_CONTROLS)
        self._last = text[-1]
        self._write(self._markdown.feed(text) if self._is_styled else text)

    def reasoning(self, text: str) -> None:
        """Show what the model thinks, which is no part of the answer: at a terminal only."""
        if not self.is_terminal or not text:
            return
        self._is_reasoning = True
        text = text.translate(_UNSHOWN)
        self._write(f"{_DIM}{text}{_OFF}" if self._is_styled else text)
        self._last = text[-1]

    def note(self, text: str) -> None:
        """Write a line about the answer."""
        self.end()
        text = text.translate(_UNSHOWN) if self._notes.isatty() else text
        self._notes.write(f"{text}\n")
        self._notes.flush()

    def line(self, text: str) -> None:
        """Write the result of a command, which may show what a file or a server has sent."""
        self.end()
        self._write(f"{text.translate(_UNSHOWN)}\n")

    def end(self) -> None:
        """End the answer's last line, and its styles."""
        if self._half:
            self._half = ""
            self.text("\ufffd")
        if self._is_styled:
            self._write(self._markdown.feed("", is_last=True))
        self._markdown = Markdown()
        self._is_reasoning = False
        if self._last != "\n":
            self._last = "\n"
            self._write("\n")

    def _joined(self, text: str) -> str:
        """Return a text with its pairs of surrogates put together, over the ends of pieces too."""
        text = self._half + text
        self._half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        text = text.removesuffix(self._half)
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
