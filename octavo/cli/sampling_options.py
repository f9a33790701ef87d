"""The flags of sampling parameters, with the names that requests use."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
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
# Further samplers; the values of SamplerOptions.
_FURTHER: tuple[tuple[str, type[int] | type[float], str, str], ...] = (
    ("typical_p", float, "SHARE", "sample from tokens about as likely as is typical"),
    ("top_n_sigma", float, "NUMBER", "exclude logits so many standard deviations below the best"),
    ("xtc_probability", float, "SHARE", "how often only the least of the likely tokens is kept"),
    ("xtc_threshold", float, "SHARE", "the probability of a likely token (default: 0.1)"),
    ("dynatemp_range", float, "NUMBER", "vary the temperature by so much with the entropy"),
    ("dynatemp_exponent", float, "NUMBER", "the power to which the entropy is taken (default: 1)"),
    ("dry_multiplier", float, "NUMBER", "above 0: penalise what would continue a repetition"),
    ("dry_base", float, "NUMBER", "growth with each repeated token (default: 1.75)"),
    ("dry_allowed_length", int, "TOKENS", "repeated tokens without a penalty (default: 2)"),
    ("dry_penalty_last_n", int, "TOKENS", "how far repetitions are looked for (default: all)"),
    ("repeat_last_n", int, "TOKENS", "how far penalties look back (default: all)"),
    ("mirostat", int, "VERSION", "1 or 2: hold the surprise of tokens near a target"),
    ("mirostat_tau", float, "BITS", "the surprise that mirostat aims at (default: 5)"),
    ("mirostat_eta", float, "NUMBER", "how fast mirostat follows it (default: 0.1)"),
)

# What the commands of a conversation set, by the names that requests use.
SETTINGS: dict[str, type[int] | type[float] | type[str]] = {
    **{name: kind for name, kind, *_ in (*_OPTIONS, *_FURTHER)},
    "seed": int,
    "stop": str,
}


def add_sampling_options(parser: Parser) -> None:
    """Add the flags of all sampling parameters."""
    group = parser.add_argument_group("sampling")
    for name, kind, metavar, text in (*_OPTIONS, *_FURTHER):
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

    asked = _given(arguments, _OPTIONS)
    asked["sampler_options"] = _given(arguments, _FURTHER)
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
    names = [name for name, *_ in (*_OPTIONS, *_FURTHER)]
    given = {name: getattr(arguments, name) for name in (*names, "stop")}
    given["seed"] = arguments.sampling_seed
    found = {name: value for name, value in given.items() if value is not None}
    return {**found, "ignore_eos": True} if arguments.ignore_eos else found


def _given(arguments: argparse.Namespace, options: Iterable[tuple[Any, ...]]) -> dict[str, Any]:
    """Return the flags among some that were given."""
    names = [name for name, *_ in options]
    found = {name: getattr(arguments, name, None) for name in names}
    return {name: value for name, value in found.items() if value is not None}
