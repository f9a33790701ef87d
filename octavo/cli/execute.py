"""The run of one sub-command: its parser, the log, and the messages of its errors."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from typing import TextIO

from octavo import env
from octavo.cli.commands import FAILED, INTERRUPTED, MODEL, OK, USAGE, Command
from octavo.cli.parsing import Parser, UsageError
from octavo.cli.trouble import explain, is_of_model, is_of_settings
from octavo.observe.collection import no_collection
from octavo.observe.log import TEXT, set_up_log


def make_parser(command: Command) -> Parser:
    """Build the command's parser with all its options."""
    module = importlib.import_module(command.module)
    description, _, more = (module.__doc__ or "").partition("\n\n")
    parser = Parser(
        prog=f"octavo {command.words}",
        description=" ".join(description.split()),
        epilog=more.strip() or None,
    )
    module.add_arguments(parser)
    parser.add_argument(
        "--debug",
        action="store_true",
        help="show the traceback of an error, and log at debug level",
    )
    return parser


def execute(command: Command, words: list[str]) -> int:
    """Run the command and return the exit code."""
    env.let_numpy_sleep()
    is_debugging = "--debug" in words
    spellings: dict[str, str] = {}
    try:
        with no_collection():
            parser = make_parser(command)
        spellings = parser.spellings(words)
        arguments = parser.parse_args(words)
        origins: dict[str, str] = getattr(arguments, "origins", {})
        spellings |= {
            key: origin for key, origin in origins.items() if origin.startswith(env.SETTING)
        }
        level = getattr(arguments, "log_level", logging.WARNING)
        form = getattr(arguments, "log_format", TEXT)
        undo = set_up_log(logging.DEBUG if is_debugging else level, spellings, form)
        try:
            code: int = importlib.import_module(command.module).run(arguments)
            sys.stdout.flush()
        finally:
            undo()  # a program that calls `main` keeps its own logging
    except UsageError as error:
        sys.stderr.write(f"octavo {command.words}: {error}\n")
        return USAGE
    except SystemExit as error:  # argparse, after --help
        return error.code if isinstance(error.code, int) else OK
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return INTERRUPTED
    except BrokenPipeError as error:  # the reader of our output has closed the pipe
        return fail_to_write(error)
    except Exception as error:
        if is_debugging:
            traceback.print_exc()
        sys.stderr.write(f"octavo {command.words}: {explain(error, spellings)}\n")
        try:
            sys.stdout.flush()
        except OSError:  # it is why the command has failed, or fails too
            _discard(sys.stdout)
        if is_of_model(error):
            return MODEL
        return USAGE if is_of_settings(error) else FAILED
    return code


def fail_to_write(error: OSError) -> int:
    """Say why standard output cannot be written, and return the exit code."""
    _discard(sys.stdout)
    if not isinstance(error, BrokenPipeError):
        why = f"{(error.strerror or str(error)).lower()}; free some space, or write elsewhere"
        sys.stderr.write(f"octavo: standard output cannot be written: {why}\n")
    return FAILED


def _discard(stream: TextIO) -> None:
    """Redirect standard output, so that the last flush of a broken pipe cannot fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, stream.fileno())
    except (OSError, ValueError):  # not a real file, so there is nothing to flush either
        pass
    finally:
        os.close(nowhere)
