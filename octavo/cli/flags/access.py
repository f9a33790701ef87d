"""The flags of access that several commands have: keys, and lists of names."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from octavo.cli.parsing import UsageError
from octavo.options.transport import read_keys

log = logging.getLogger("octavo.cli")


def add_keys(group: argparse._ArgumentGroup) -> None:
    """Add the flags of keys, which are read from several places."""
    group.add_argument(
        "--api-key",
        nargs="+",
        action="extend",
        metavar="KEY",
        help="keys, one of which clients must send; other users of this machine can see them in "
        "the list of processes, unlike --api-key-file and OCTAVO_API_KEY; where no key is given, "
        "those of VLLM_API_KEY or LLAMA_API_KEY count",
    )
    group.add_argument("--api-key-file", type=Path, metavar="FILE", help="keys, one per line")


def keys_of(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return the keys of the command line, the file and the environment."""
    from octavo import env

    typed = tuple(arguments.api_key or ())
    keys = tuple(dict.fromkeys((*typed, *read_keys(arguments.api_key_file, env.api_keys()))))
    if not keys:
        variable, keys = env.foreign_api_keys()
        if keys:
            log.info("the API keys are those of %s", variable)
    return keys


def words(given: list[str] | None) -> tuple[str, ...]:
    """Return names that were given one by one or with commas, or in a JSON list as in vLLM."""
    import json

    found: list[str] = []
    for text in given or ():
        if not text.startswith("["):
            found += [each.strip() for each in text.split(",")]
            continue
        try:
            names = json.loads(text)
        except json.JSONDecodeError:
            raise UsageError(f"{text!r} is not a JSON list of names") from None
        if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
            raise UsageError(f"{text!r} is not a JSON list of names")
        found += names
    return tuple(found)
