"""The flags of the log: the least level of its lines, and their form."""

from __future__ import annotations

import argparse

from octavo.observe.log import JSON, TEXT

_LEVELS = {"trace": "DEBUG", "critical": "CRITICAL", "error": "ERROR", "warning": "WARNING"}
_LEVELS |= {"info": "INFO", "debug": "DEBUG"}


def add_log_level(parser: argparse.ArgumentParser) -> None:
    """Add the flags; vLLM has that of the level under another name."""
    parser.add_argument(
        "--log-level",
        "--uvicorn-log-level",
        type=_level,
        default="INFO",
        metavar="LEVEL",
        help="debug, info, warning or error (info)",
    )
    parser.add_argument(
        "--log-format",
        choices=(TEXT, JSON),
        default=TEXT,
        help="what a line of the log is: text, or a JSON object",
    )


def _level(text: str) -> str:
    level = _LEVELS.get(text.lower())
    if level is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a level; use one of: {', '.join(_LEVELS)}"
        )
    return level
