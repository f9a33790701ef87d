"""Writes the log to standard error: when (UTC), how grave, who says it, what; in every process."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable

# Loggers whose lines speak of settings by their names, and hold nobody else's words.
SETTLERS = frozenset({"octavo.engine_arguments", "octavo.resolve", "octavo.engine.build"})


class LogHandler(logging.Handler):
    """A record as a line, to whatever standard error is just then."""

    def __init__(self, spell: Callable[[str], str] = str) -> None:
        super().__init__()
        self._spell = spell
        self.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            # In one piece: the engine's process writes to the same place.
            line = self.format(record)
            sys.stderr.write((self._spell(line) if record.name in SETTLERS else line) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


class LogFormatter(logging.Formatter):
    """With the time as 2026-01-31T23:59:59.999Z."""

    def formatTime(  # noqa: N802  the name is theirs
        self, record: logging.LogRecord, datefmt: str | None = None
    ) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return f"{seconds}.{int(record.msecs):03d}Z"


def set_up_log(level: int | str, spell: Callable[[str], str] = str) -> Callable[[], None]:
    """Log to standard error: Octavo's records from `level`, those of libraries from warnings.

    `spell` turns the names of settings into what a user would type. Return a function that removes
    the handler and restores the level.
    """
    root, ours = logging.getLogger(), logging.getLogger("octavo")
    for old in [each for each in root.handlers if isinstance(each, LogHandler)]:
        root.removeHandler(old)
    handler, level_before = LogHandler(spell), ours.level
    root.addHandler(handler)
    ours.setLevel(level)

    def undo() -> None:
        root.removeHandler(handler)
        ours.setLevel(level_before)

    return undo
