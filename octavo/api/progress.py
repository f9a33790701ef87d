"""A line on the terminal with the progress of a batch."""

from __future__ import annotations

import sys
import time
from typing import TextIO

REDRAW_SECONDS = 0.1


class ProgressLine:
    """A progress line, drawn at most ten times a second and only on a terminal."""

    def __init__(self, total: int, shown: bool, stream: TextIO | None = None) -> None:
        self._total = total
        self._stream = stream or sys.stderr
        self.is_shown = shown and total > 0 and self._stream.isatty()
        self._began = self._drawn = time.monotonic()
        self._done = self._tokens = 0

    def show(self, done: int, new_tokens: int) -> None:
        """Take the number of finished requests and of new output tokens; redraw the line."""
        self._done = done
        self._tokens += new_tokens
        now = time.monotonic()
        if self.is_shown and (now - self._drawn > REDRAW_SECONDS or self._done == self._total):
            self._drawn = now
            rate = self._tokens / max(now - self._began, 1e-9)
            line = f"\r{self._done}/{self._total} requests, {rate:.0f} tokens/s "
            self._stream.write(line)
            self._stream.flush()

    def close(self) -> None:
        """Leave the line as it is and start the next."""
        if self.is_shown:
            self._stream.write("\n")
            self._stream.flush()
