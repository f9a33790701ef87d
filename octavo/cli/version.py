"""Prints the version."""

from __future__ import annotations

import argparse
import platform
import sys

from octavo.cli.parsing import Parser


def add_arguments(parser: Parser) -> None:
    """None of its own."""


def run(arguments: argparse.Namespace) -> int:
    """Octavo's, and that of the Python it runs in."""
    version = version_of("octavo") or "(run from its sources)"
    sys.stdout.write(f"octavo {version} (Python {platform.python_version()})\n")
    return 0


def version_of(package: str) -> str | None:
    """The installed version; None if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
