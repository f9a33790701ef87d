"""The flags that say how tokens are drawn, under the names that requests have for them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from octavo.cli.parsing import Parser

if TYPE_CHECKING:
    from octavo.core.sampling_params import SamplingParams

_OPTIONS: tuple[tuple[str, type, str, str], ...] = (
    ("max_tokens", int, "TOKENS", "most tokens of an answer; by default as many as there is room"),
    ("min_tokens", int, "TOKENS", "fewest tokens of an answer"),
    ("temperature", float, "NUMBER", "0 takes the most likely token; by default as the model says"),
    ("top_p", float, "SHARE", "draw from the most likely tokens that make up this share"),
    ("top_k", int, "COUNT", "draw from so many of the most likely tokens; 0: from all"),
    ("min_p", float, "SHARE", "leave out tokens less likely than this share of the likeliest"),
    ("repetition_penalty", float, "NUMBER", "above 1: repeat less of prompt and answer"),
    ("presence_penalty", float, "NUMBER", "above 0: repeat less of the answer"),
    ("frequency_penalty", float, "NUMBER", "above 0: less so the more often it stands there"),
)


def add_sampling_options(parser: Parser) -> None:
    """Everything a prompt at a terminal may want."""
    group = parser.add_argument_group("sampling")
    for name, kind, metavar, text in _OPTIONS:
        flag = "--" + name.replace("_", "-")
        group.add_argument(flag, dest=name, type=kind, metavar=metavar, help=text)
    group.add_argument(
        "--stop",
        action="append",
        metavar="TEXT",
        help="end the answer before this text; may be given several times",
    )
    group.add_argument("--ignore-eos", action="store_true", help="go on behind the model's end")
    group.add_argument(
        "--sampling-seed", type=int, metavar="NUMBER", help="the same seed draws the same answer"
    )


def sampling_of(arguments: argparse.Namespace, recommended: SamplingParams) -> SamplingParams:
    """The model's own recommendation with what was asked for put over it."""
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
