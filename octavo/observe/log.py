"""Writes the log to standard error, in every process in the same form."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable

# Loggers whose lines contain names of settings, and no words of clients or models.
SETTINGS_LOGGERS = frozenset({"octavo.engine_arguments", "octavo.resolve", "octavo.engine.build"})


class LogHandler(logging.Handler):
    """A handler that writes each record as a line to the current `sys.stderr`."""

    def __init__(self, spell: Callable[[str], str] = str) -> None:
        super().__init__()
        self._spell = spell
        self.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            # In one write: the engine's process writes to the same file.
            line = self.format(record)
            sys.stderr.write(
                (self._spell(line) if record.name in SETTINGS_LOGGERS else line) + "\n"
            )
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


class LogFormatter(logging.Formatter):
    """A formatter with times such as 2026-01-31T23:59:59.999Z."""

    def formatTime(  # noqa: N802  a name of the standard library
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
