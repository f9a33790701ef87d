"""Runs one sub-command: builds its parser, sets up the log, and turns errors into words."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from typing import TextIO

from octavo.cli.commands import FAILED, INTERRUPTED, OK, USAGE, Command
from octavo.cli.parsing import Parser, UsageError
from octavo.cli.trouble import explain


def make_parser(command: Command) -> Parser:
    """The command's parser with all its options."""
    module = importlib.import_module(command.module)
    description, _, more = (module.__doc__ or "").partition("\n\n")
    parser = Parser(
        prog=f"octavo {command.name}",
        description=" ".join(description.split()),
        epilog=more.strip() or None,
    )
    module.add_arguments(parser)
    parser.add_argument(
        "--debug", action="store_true", help="show the traceback of an error, and log everything"
    )
    return parser


def execute(command: Command, words: list[str]) -> int:
    """Run it; the exit code."""
    is_debugging = "--debug" in words
    try:
        arguments = make_parser(command).parse_args(words)
        set_up_log(logging.DEBUG if is_debugging else getattr(arguments, "log_level", None))
        code: int = importlib.import_module(command.module).run(arguments)
        sys.stdout.flush()
    except UsageError as error:
        sys.stderr.write(f"octavo {command.name}: {error}\n")
        return USAGE
    except SystemExit as error:  # argparse, after --help
        return error.code if isinstance(error.code, int) else OK
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has read enough
        _discard(sys.stdout)
        return FAILED
    except Exception as error:
        if is_debugging:
            traceback.print_exc()
        sys.stderr.write(f"octavo {command.name}: {explain(error)}\n")
        return FAILED
    return code


def set_up_log(level: int | str | None) -> None:
    """Octavo's own log goes to standard error from `level` up, others' from warnings up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter())
    ours = logging.getLogger("octavo")
    for old in [each for each in ours.handlers if isinstance(each.formatter, _Formatter)]:
        ours.removeHandler(old)
    ours.addHandler(handler)
    ours.propagate = False
    ours.setLevel(level if level is not None else logging.WARNING)


class _Formatter(logging.Formatter):
    """Plain lines; what is not routine says so first."""

    def __init__(self) -> None:
        super().__init__("%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.levelno <= logging.INFO else f"{record.levelname.lower()}: {text}"


def _discard(stream: TextIO) -> None:
    """Let the interpreter's last flush of a broken pipe go to nobody."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, stream.fileno())
    except (OSError, ValueError):  # not a real file, so there is nothing to flush either
        pass
    finally:
        os.close(nowhere)
