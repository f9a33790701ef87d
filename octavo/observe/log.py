"""Writes the log to standard error, in every process: time (UTC), level, logger, message.

A line is text, or a JSON object for programs that collect logs.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable, Mapping

TEXT, JSON = "text", "json"  # the forms of a line
# Loggers whose lines name settings and quote no text from elsewhere.
SETTING_LOGGERS = frozenset(
    {
        *("octavo.options.engine", "octavo.resolve", "octavo.room_for_ranks"),
        "octavo.engine.build",
    }
)


class LogHandler(logging.Handler):
    """A handler that writes to whatever standard error is at that moment."""

    def __init__(self, flags: Mapping[str, str] | None = None, form: str = TEXT) -> None:
        super().__init__()
        self.flags, self.form = dict(flags or {}), form
        kind = JsonFormatter if form == JSON else LogFormatter
        self.setFormatter(kind("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if record.name in SETTING_LOGGERS:
                record = logging.makeLogRecord(vars(record))  # others have handlers of their own
                record.msg, record.args = with_flags(record.getMessage(), self.flags), None
            line = self.format(record)
            sys.stderr.write(line + "\n")  # one write: the engine's process writes there too
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


class LogFormatter(logging.Formatter):
    """A formatter that writes the time as 2026-01-31T23:59:59.999Z."""

    def formatTime(  # noqa: N802  the base class's name
        self, record: logging.LogRecord, datefmt: str | None = None
    ) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return f"{seconds}.{int(record.msecs):03d}Z"


class JsonFormatter(LogFormatter):
    """A formatter that writes one JSON object a line, a traceback within it."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)  # in ASCII: valid in every encoding, and no control characters


def set_up_log(
    level: int | str, flags: Mapping[str, str] | None = None, form: str = TEXT
) -> Callable[[], None]:
    """Log to standard error: Octavo's lines from `level` up, other libraries' from WARNING up.

    `flags` has the flag of each setting, as a user types it; lines about settings then name flags.
    Return a function that removes the handler and restores the level.
    """
    root, ours = logging.getLogger(), logging.getLogger("octavo")
    for old in _our_handlers():
        root.removeHandler(old)
    handler, level_before = LogHandler(flags, form), ours.level
    root.addHandler(handler)
    ours.setLevel(level)

    def undo() -> None:
        root.removeHandler(handler)
        ours.setLevel(level_before)

    return undo


def level_in_use() -> int:
    """Return from which level up this process logs, so that a child process logs alike."""
    return logging.getLogger("octavo").getEffectiveLevel()


def form_in_use() -> str:
    """Return the form of this process's lines, so that a child process logs alike."""
    return next((handler.form for handler in _our_handlers()), TEXT)


def flags_in_use() -> dict[str, str]:
    """Return the flags that `set_up_log` was given, so that a child process logs alike."""
    return next((handler.flags for handler in _our_handlers()), {})


def with_flags(text: str, flags: Mapping[str, str]) -> str:
    """Replace the names of settings by their flags: `max_model_len` by `--max-model-len`.

    A name that is an ordinary word too, such as `seed`, is replaced only before its value. One
    behind `…_config: ` is a key of that setting, and stays.
    """
    names = sorted((name for name in flags if name.isidentifier()), key=len, reverse=True)
    if not names:
        return text

    def flag(match: re.Match[str]) -> str:
        name, equals = match[1], match[2]
        return flags[name] + equals if "_" in name or equals else name

    # A part of a path or of a file's name is no setting: /models/x/generation_config.json.
    return re.sub(rf"(?<![\w/.-])(?<!_config: )({'|'.join(names)})(?![\w/-]|\.\w)(=?)", flag, text)


def _our_handlers() -> list[LogHandler]:
    return [each for each in logging.getLogger().handlers if isinstance(each, LogHandler)]
