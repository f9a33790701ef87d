"""The flags of an engine: a flag for every field of EngineArguments, under vLLM's names.

vLLM's flags that Octavo has no setting for are added too (cli/flags/foreign.py).
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo import env
from octavo.cli.flags.foreign import add_foreign_flags
from octavo.cli.parsing import Parser, UsageError, attached_instead
from octavo.client.restart_policy import Timing
from octavo.options import DEFAULT_MODEL
from octavo.options.declare import add_flags, aliases_of, given_in
from octavo.options.engine import EngineArguments, read_arguments
from octavo.options.foreign import FIXED, INERT
from octavo.options.processes.data_parallel import NAMES
from octavo.options.speculation import METHODS

# Flags behind which the model's name may stand as one of their values.
_TAKE_SEVERAL = ("api_key", "ignore_patterns", "logits_processors", "lora_target_modules")


def add_model(parser: Parser, *, has_default: bool = True, several: bool = False) -> None:
    """Add the model, as a word or, where there is a default, as --model; or any number of words."""
    if has_default:
        default = f"(default: {DEFAULT_MODEL})"
        text = f"the model, or several {default}" if several else f"the model {default}"
        nargs = "*" if several else "?"
        parser.add_argument("model_word", metavar="MODEL", nargs=nargs, help=text)
        parser.add_argument("--model", metavar="MODEL", help=argparse.SUPPRESS)
    else:
        parser.add_argument("model_word", metavar="MODEL", help="the model")


def model_of(arguments: argparse.Namespace) -> str:
    """Return the model that the user named."""
    words, flag = arguments.model_word, getattr(arguments, "model", None)
    if isinstance(words, list):  # of a command that takes several
        words = words[0] if words else None
    word: str | None = words
    if word is not None and flag not in (None, word):
        hint = ""
        if getattr(arguments, "packed_cache", None) == "auto":
            hint = attached_instead("--packed-cache", word)
        raise UsageError(f"two models are named, {word!r} and --model {flag!r}; name one{hint}")
    served: list[str] = getattr(arguments, "served_model_name", None) or []
    if word is None and flag is None:
        for several in _TAKE_SEVERAL:
            if len(getattr(arguments, several, None) or ()) > 1:
                given = "--" + several.replace("_", "-")
                raise UsageError(
                    f"the words behind {given} may end with the model, and no other is named; put "
                    f"the model first: octavo serve MODEL {given} ..."
                )
    if word is None and flag is None and len(served) > 1:
        command = shlex.join(["octavo", "serve", served[-1], "--served-model-name", *served[:-1]])
        raise UsageError(
            f"is {served[-1]!r} the model, or a name to serve it by? Put the model first: {command}"
        )
    name: str = word if word is not None else flag if flag is not None else DEFAULT_MODEL
    return name


def add_engine_options(parser: Parser) -> None:
    """Add a flag for each field; omitted flags leave the field's default in place."""
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--download-dir",
        type=Path,
        metavar="DIR",
        help="the Hugging Face cache, instead of the one that HF_HUB_CACHE or HF_HOME names",
    )
    add_flags(group, EngineArguments)
    for flag, key, options in _SPECULATION:
        text = f"the key {key} of --speculative-config; by itself, it switches ngram on"
        group.add_argument(flag, dest=f"_{key}", default=argparse.SUPPRESS, help=text, **options)
    parser.add_wholes({f"_{key}": "speculative_config" for _, key, _ in _SPECULATION})
    add_foreign_flags(parser)
    parser.add_aliases(aliases_of(EngineArguments))


# Short forms of single keys, the first two as in vLLM.
_SPECULATION: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("--spec-method", "method", {"choices": METHODS}),
    ("--spec-tokens", "num_speculative_tokens", {"type": int, "metavar": "COUNT"}),
)


def engine_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the flags that were given, by the names of `EngineArguments` and of vLLM.

    From now on, models are kept where --download-dir says.
    """
    if arguments.download_dir is not None:
        env.use_hub_cache(arguments.download_dir)
    given = given_in(arguments, EngineArguments)
    given.pop("model", None)
    for name in (*INERT, *FIXED, *NAMES):
        if name != "download_dir" and getattr(arguments, name, None) is not None:
            given[name] = getattr(arguments, name)
    return _with_short_forms(given, arguments)


def _with_short_forms(given: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options with the keys of speculation that have flags of their own."""
    keys = {key: getattr(arguments, f"_{key}", None) for _, key, _ in _SPECULATION}
    keys = {key: value for key, value in keys.items() if value is not None}
    if not keys:
        return given
    whole: object = given.get("speculative_config")
    if whole is None:
        return {**given, "speculative_config": {"method": "ngram", **keys}}
    try:
        whole = json.loads(whole) if isinstance(whole, str) else whole
    except (ValueError, RecursionError):
        return given  # it is refused later, with the reason
    if not isinstance(whole, Mapping):
        return given
    for flag, key, _ in _SPECULATION:
        if key in keys and key in whole:
            raise UsageError(
                f"{flag} and the key {key} of --speculative-config are both given; leave one out"
            )
    return {**given, "speculative_config": {**whole, **keys}}


def engine_arguments(arguments: argparse.Namespace) -> EngineArguments:
    """Return the checked `EngineArguments` of the flags."""
    return read_arguments(model_of(arguments), engine_options(arguments))


def add_timing_options(parser: Parser) -> None:
    """Add the flags, in a group."""
    add_flags(parser.add_argument_group("engine's process"), Timing)


def timing_of(arguments: argparse.Namespace) -> Timing:
    """Return the limits; refuse flags that concern no process."""
    given = given_in(arguments, Timing)
    if given and arguments.engine != "process":
        flag = "--" + next(iter(given)).replace("_", "-")
        raise UsageError(
            f"{flag} limits the engine's process, and --engine {arguments.engine} has none"
        )
    return Timing(**given)
