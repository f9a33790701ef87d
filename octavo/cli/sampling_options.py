"""The flags of sampling parameters, with the names that requests use."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from octavo.cli.parsing import Parser

if TYPE_CHECKING:
    from octavo.core.sampling_params import SamplingParams

_OPTIONS: tuple[tuple[str, type[int] | type[float], str, str], ...] = (
    (
        "max_tokens",
        int,
        "TOKENS",
        "maximum number of tokens of an answer (default: as many as fit)",
    ),
    ("min_tokens", int, "TOKENS", "minimum number of tokens of an answer"),
    ("temperature", float, "NUMBER", "0 takes the most likely token (default: the model's own)"),
    (
        "top_p",
        float,
        "SHARE",
        "sample from the most likely tokens whose probabilities add up to this share",
    ),
    ("top_k", int, "COUNT", "sample from this many of the most likely tokens; 0: from all"),
    ("min_p", float, "SHARE", "exclude tokens less likely than this share of the most likely one"),
    ("repetition_penalty", float, "NUMBER", "above 1: repeat prompt and answer less"),
    ("presence_penalty", float, "NUMBER", "above 0: repeat the answer less"),
    ("frequency_penalty", float, "NUMBER", "above 0: repeat a token less the more often it occurs"),
)

# What the commands of a conversation set, by the names that requests use.
SETTINGS: dict[str, type[int] | type[float] | type[str]] = {
    **{name: kind for name, kind, *_ in _OPTIONS},
    "seed": int,
    "stop": str,
}


def add_sampling_options(parser: Parser) -> None:
    """Add the flags of all sampling parameters."""
    group = parser.add_argument_group("sampling")
    for name, kind, metavar, text in _OPTIONS:
        flag = "--" + name.replace("_", "-")
        group.add_argument(flag, dest=name, type=kind, metavar=metavar, help=text)
    group.add_argument(
        "--stop",
        action="append",
        metavar="TEXT",
        help="end the answer before this text (repeatable)",
    )
    group.add_argument(
        "--ignore-eos", action="store_true", help="continue after the model's end token"
    )
    group.add_argument(
        "--sampling-seed", type=int, metavar="NUMBER", help="the same seed gives the same answer"
    )


def sampling_of(arguments: argparse.Namespace, recommended: SamplingParams) -> SamplingParams:
    """Combine the model's recommendation with the flags that were given."""
    from dataclasses import replace

    from octavo.core.sampling_params import RequestOutputKind

    asked: dict[str, Any] = {
        name: value
        for name, *_ in _OPTIONS
        if (value := getattr(arguments, name, None)) is not None
    }
    asked.setdefault("max_tokens", None)
    if arguments.stop:
        asked["stop"] = tuple(arguments.stop)
    if arguments.sampling_seed is not None:
        asked["seed"] = arguments.sampling_seed
    return replace(
        recommended,
        ignore_eos=arguments.ignore_eos,
        output_kind=RequestOutputKind.DELTA,
        **asked,
    )


def sampling_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the flags that were given, as a request has them."""
    names = [name for name, *_ in _OPTIONS]
    given = {name: getattr(arguments, name) for name in (*names, "stop")}
    given["seed"] = arguments.sampling_seed
    found = {name: value for name, value in given.items() if value is not None}
    return {**found, "ignore_eos": True} if arguments.ignore_eos else found
