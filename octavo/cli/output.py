"""Tables, sizes and progress as text."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence

_QUIET_SECONDS = 10.0  # between two lines that go to a file
_REDRAW_SECONDS = 0.1


def table(rows: Sequence[Sequence[str]], *, indent: str = "", right: Sequence[int] = ()) -> str:
    """Format rows as columns; the columns in `right` are aligned to the right."""
    if not rows:
        return ""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((indent + "  ".join(cells)).rstrip() + "\n")
    return "".join(lines)


def size(num_bytes: int) -> str:
    """Format a number of bytes, as in 513 MiB."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"


class ProgressLine:
    """A line of progress on standard error: redrawn at a terminal, else a line now and then."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._began = time.monotonic()
        self._shown_at = -math.inf
        self._has_ended = False

    def is_due(self, *, is_end: bool) -> bool:
        """Return whether to write the line now; its end is always written, and once."""
        now = time.monotonic()
        pause = _REDRAW_SECONDS if self._is_terminal else _QUIET_SECONDS
        if now - self._shown_at < pause and not (is_end and not self._has_ended):
            return False
        self._shown_at, self._has_ended = now, is_end
        return True

    @property
    def seconds(self) -> float:
        """The time since the beginning, never 0."""
        return max(time.monotonic() - self._began, 1e-9)

    def write(self, text: str) -> None:
        """Write the line in the place of the last one, or below it."""
        sys.stderr.write(f"\r{text} " if self._is_terminal else f"{text}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Leave the line as it is and start the next."""
        if self._is_terminal and self._shown_at > -math.inf:
            sys.stderr.write("\n")
