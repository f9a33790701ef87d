"""Prints a script by which a shell completes the command line.

For bash: `source <(octavo completion bash)`, also in ~/.bashrc.
For zsh: `octavo completion zsh > DIR/_octavo`, with DIR in its fpath.
For fish: `octavo completion fish > ~/.config/fish/completions/octavo.fish` (in fish; `mkdir -p` its
directory first).
"""

from __future__ import annotations

import argparse
import sys

from octavo.cli.parsing import Parser

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: Parser) -> None:
    """Add the name of the shell."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def run(arguments: argparse.Namespace) -> int:
    """Print the script for the shell."""
    from octavo.cli.about import bash, fish, zsh
    from octavo.cli.about.description import pages

    writers = {"bash": bash.script, "zsh": zsh.script, "fish": fish.script}
    sys.stdout.write(writers[arguments.shell](tuple(pages())))
    return 0
