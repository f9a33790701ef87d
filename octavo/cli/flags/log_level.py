"""The flag of the least level that is logged."""

from __future__ import annotations

import argparse

_LEVELS = {"trace": "DEBUG", "critical": "CRITICAL", "error": "ERROR", "warning": "WARNING"}
_LEVELS |= {"info": "INFO", "debug": "DEBUG"}


def add_log_level(parser: argparse.ArgumentParser) -> None:
    """Add the flag, which vLLM has under another name."""
    parser.add_argument(
        "--log-level",
        "--uvicorn-log-level",
        type=_level,
        default="INFO",
        metavar="LEVEL",
        help="debug, info, warning or error (info)",
    )


def _level(text: str) -> str:
    level = _LEVELS.get(text.lower())
    if level is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a level; use one of: {', '.join(_LEVELS)}"
        )
    return level
