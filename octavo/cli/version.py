"""The `version` command: Octavo's version."""

from __future__ import annotations

import argparse
import sys

from octavo.cli.parsing import Parser


def add_arguments(parser: Parser) -> None:
    """Add no arguments: the command has none."""


def run(arguments: argparse.Namespace) -> int:
    """Print the versions of Octavo and of Python."""
    version = version_of("octavo") or "(run from its sources)"
    sys.stdout.write(f"octavo {version} (Python {sys.version.partition(' ')[0]})\n")
    return 0


def version_of(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
