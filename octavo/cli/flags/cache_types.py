"""llama-server's types of the KV cache, one for keys and one for values, as `--kv-cache-dtype`."""

from __future__ import annotations

import argparse

from octavo.cli.parsing import Parser, UsageError

_SHORT = {"--cache-type-k": "-ctk", "--cache-type-v": "-ctv"}
_USUAL = "f16"
_SAME = {_USUAL: "auto", "bf16": "auto", "q8_0": "int8", "q4_0": "int4"}


def add_cache_types(parser: Parser) -> None:
    """Add the flags, hidden."""
    for flag, short in _SHORT.items():
        parser.add_argument(short, flag, dest=flag, default=None, help=argparse.SUPPRESS)
    parser.add_wholes(dict.fromkeys(_SHORT, "kv_cache_dtype"))


def follow_cache_types(arguments: argparse.Namespace) -> None:
    """Set the KV cache's type to what the flags name; refuse what it cannot be."""
    given = {flag: getattr(arguments, flag, None) for flag in _SHORT}
    named = {flag: value for flag, value in given.items() if value is not None}
    if not named:
        return
    for flag, value in named.items():
        if value not in _SAME:
            raise UsageError(
                f"{flag} {value[:100]} is not supported: the types are {', '.join(_SAME)}; see "
                "--kv-cache-dtype too"
            )
    found = {_SAME[value or _USUAL] for value in given.values()}
    if len(found) > 1:
        flag, value = next((f, v) for f, v in named.items() if _SAME[v] != "auto")
        raise UsageError(
            f"{flag} {value} is not supported: keys and values have one type here; give "
            f"{' and '.join(_SHORT)} the same, or --kv-cache-dtype alone"
        )
    (dtype,) = found
    asked = getattr(arguments, "kv_cache_dtype", None)
    if asked not in (None, dtype):
        raise UsageError(
            f"--kv-cache-dtype {asked} is not supported: {' and '.join(named)} ask for {dtype}; "
            "leave one of them out"
        )
    arguments.kv_cache_dtype = dtype
