"""Prints the manual page of a command, or that of `octavo` itself, or writes all of them.

At a terminal `man` shows it, where there is one. To install all: `octavo man --output DIR/man1`,
with DIR in MANPATH; then `man octavo-serve`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from octavo.cli.commands import COMMANDS
from octavo.cli.parsing import Parser, UsageError


def add_arguments(parser: Parser) -> None:
    """Add the command, or the directory for the pages of all."""
    parser.add_argument(
        "page", metavar="COMMAND", nargs="?", choices=tuple(COMMANDS), help="a command"
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="write the pages of all commands into it"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the page, or write the pages."""
    from octavo.cli.about.roff import command_page, overview_page

    if arguments.output is None:
        name = arguments.page
        _show(overview_page() if name is None else command_page(COMMANDS[name]))
        return 0
    if arguments.page is not None:
        raise UsageError("--output writes the pages of all commands; leave the command out")
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "octavo.1").write_text(overview_page(), "utf-8")
    for command in COMMANDS.values():
        (arguments.output / f"octavo-{command.name}.1").write_text(command_page(command), "utf-8")
    sys.stdout.write(f"{len(COMMANDS) + 1} pages are in {arguments.output}\n")
    return 0


def _show(page: str) -> None:
    """Write a page; at a terminal it is formatted, and shown a screen at a time, by `man`."""
    viewer = shutil.which("man") if sys.stdout.isatty() else None
    if viewer is None or subprocess.run([viewer, "-l", "-"], input=page.encode()).returncode:
        sys.stdout.write(page)
