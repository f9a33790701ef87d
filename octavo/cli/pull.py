"""The `pull` command: fetches a model into the cache, unless it is there."""

from __future__ import annotations

import argparse
import logging
import sys

from octavo.cli.engine_options import add_model, model_of
from octavo.cli.output import size
from octavo.cli.parsing import Parser


def add_arguments(parser: Parser) -> None:
    parser.set_defaults(log_level="INFO")
    add_model(parser, has_default=False)
    parser.add_argument("-q", "--quiet", action="store_true", help="print only the directory")


def run(arguments: argparse.Namespace) -> int:
    """Fetch the model, with progress at a terminal, and print its place."""
    from octavo.loader.source import resolve

    if arguments.quiet and not arguments.debug:
        logging.getLogger("octavo").setLevel(logging.WARNING)
    source = resolve(model_of(arguments))
    if arguments.quiet:
        sys.stdout.write(f"{source.directory}\n")
        return 0
    num_bytes = sum(path.stat().st_size for path in source.weights)
    where = source.weights[0] if source.is_gguf else source.directory
    sys.stdout.write(f"{source.name} is here: {size(num_bytes)} of weights in {where}\n")
    return 0
