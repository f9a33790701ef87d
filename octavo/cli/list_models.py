"""The `list` command: the models in the caches.

Octavo's cache is OCTAVO_CACHE or ~/.cache/octavo; the Hugging Face hub's cache is shared with
the hub's own tools.
"""

from __future__ import annotations

import argparse
import sys

from octavo.cli.output import size, table
from octavo.cli.parsing import Parser


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print a JSON list")


def run(arguments: argparse.Namespace) -> int:
    """Print the name, kind, size and place of each model."""
    from octavo.loader.inventory import kept_models

    models = kept_models()
    if arguments.json:
        import json

        listed = [
            {
                "name": each.name,
                "kind": each.kind,
                "bytes": each.num_bytes,
                "path": str(each.path),
            }
            for each in models
        ]
        sys.stdout.write(json.dumps(listed, indent=1) + "\n")
        return 0
    if not models:
        sys.stdout.write(
            "The caches hold no models yet; `octavo pull smollm2` fetches a small one.\n"
        )
        return 0
    rows = [("MODEL", "KIND", "SIZE", "PATH")]
    rows += [(each.name, each.kind, size(each.num_bytes), str(each.path)) for each in models]
    sys.stdout.write(table(rows, right=(2,)))
    return 0
