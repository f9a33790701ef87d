"""The options of `octavo bench serve`, as those of vLLM, and what is wrong with their values."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from octavo.cli.bench.data_options import add_data_options, check_data, check_least
from octavo.cli.parsing import Parser, UsageError
from octavo.options.values import json_object, seconds

ENDPOINTS = {
    "openai": "/v1/completions",
    "vllm": "/v1/completions",
    "openai-chat": "/v1/chat/completions",
}
_PENALTIES = ("frequency_penalty", "presence_penalty", "repetition_penalty")
SAMPLING = ("temperature", "top_p", "top_k", "min_p", *_PENALTIES)
_SELF_TIMED = ("mooncake", "timed_trace")
_HAS_TIMES = (*_SELF_TIMED, "burstgpt")
_MOST_RATES = 100
# Flags of vLLM's command, which counts tokens itself.
_OF_TOKENIZERS = ("tokenizer", "tokenizer_mode", "skip_tokenizer_init", "trust_remote_code")


def add_arguments(parser: Parser) -> None:
    """Add the server, the requests, how they are sent, and what is shown."""
    server = parser.add_argument_group("the server")
    server.add_argument(
        "url", metavar="URL", nargs="?", help="of the server (http://127.0.0.1:8000)"
    )
    server.add_argument("--base-url", metavar="URL", help="the same")
    server.add_argument("--host", help="instead of a URL (127.0.0.1)")
    server.add_argument("--port", type=int, help="instead of a URL (8000)")
    server.add_argument("--model", metavar="NAME", help="as the server calls it (its first one)")
    server.add_argument("--served-model-name", metavar="NAME", help=argparse.SUPPRESS)
    for flag in ("--tokenizer", "--tokenizer-mode"):
        server.add_argument(flag, help=argparse.SUPPRESS)
    for flag in ("--skip-tokenizer-init", "--trust-remote-code"):
        server.add_argument(flag, action="store_true", help=argparse.SUPPRESS)
    server.add_argument(
        "--backend",
        choices=tuple(ENDPOINTS),
        default="openai",
        help="openai or vllm for completions, openai-chat for chats (openai)",
    )
    server.add_argument("--endpoint", metavar="PATH", help="of the requests (the backend's)")
    server.add_argument(
        "--header",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="of each request; OPENAI_API_KEY is sent as the key if it is set",
    )
    server.add_argument(
        "--ready-check-timeout-sec",
        type=seconds,
        default=0.0,
        metavar="SECONDS",
        help="to wait for a server that starts (0)",
    )
    add_data_options(parser)
    _add_requests(parser)
    _add_sending(parser)
    _add_result(parser)


def _add_requests(parser: Parser) -> None:
    group = parser.add_argument_group("what requests have")
    group.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        help="let answers go on behind the end of a text (of random, mooncake and timed_trace)",
    )
    for name in SAMPLING:
        kind = int if name == "top_k" else float
        flag = f"--{name.replace('_', '-')}"
        group.add_argument(flag, type=kind, metavar="NUMBER", help="(the server's)")
    group.add_argument(
        "--extra-body", type=json_object, default={}, metavar="JSON", help="more of each request"
    )
    group.add_argument(
        "--lora-modules",
        nargs="+",
        default=[],
        metavar="NAME",
        help="adapters of the server, one of which each request has",
    )
    group.add_argument(
        "--lora-assignment",
        choices=("random", "round-robin"),
        default="random",
        help="which one: by chance, or one after the other (random)",
    )
    group.add_argument("--seed", type=int, default=0, help="of all that is drawn by chance (0)")


def _add_sending(parser: Parser) -> None:
    group = parser.add_argument_group("how they are sent")
    group.add_argument(
        "--request-rate",
        type=float,
        default=math.inf,
        metavar="NUMBER",
        help="requests a second; inf sends all at once (inf)",
    )
    group.add_argument(
        "--burstiness",
        type=float,
        default=1.0,
        metavar="NUMBER",
        help="1 is a Poisson process, less is in bursts, more is even (1)",
    )
    group.add_argument(
        "--max-concurrency", type=int, metavar="COUNT", help="requests at once at most (any)"
    )
    group.add_argument(
        "--ramp-up-strategy",
        choices=("linear", "exponential"),
        help="change the rate from the first request to the last, instead of --request-rate",
    )
    group.add_argument("--ramp-up-start-rps", type=float, metavar="NUMBER", help="its first rate")
    group.add_argument("--ramp-up-end-rps", type=float, metavar="NUMBER", help="its last rate")
    group.add_argument(
        "--self-timed",
        action=argparse.BooleanOptionalAction,
        help="send requests at the times that a trace has, stretched to --request-rate if there is "
        "one (of mooncake and timed_trace)",
    )
    group.add_argument(
        "--num-warmups", type=int, default=0, metavar="COUNT", help="not counted (0)"
    )
    group.add_argument(
        "--sweep",
        nargs="?",
        const="auto",
        metavar="RATES",
        help="find the highest rate at which enough answers meet --goodput: from --request-rate "
        "(1) up or down, or among some, as in --sweep=1,2,4",
    )
    group.add_argument(
        "--goodput-share",
        type=float,
        default=0.9,
        metavar="SHARE",
        help="of the requests that is enough for --sweep (0.9)",
    )


def _add_result(parser: Parser) -> None:
    group = parser.add_argument_group("the result")
    group.add_argument(
        "--percentile-metrics",
        default="ttft,tpot,itl",
        metavar="NAMES",
        help="the times that are shown: ttft, tpot, itl and e2el (ttft,tpot,itl)",
    )
    group.add_argument(
        "--metric-percentiles",
        default="50,90,99",
        metavar="NUMBERS",
        help="that are shown (50,90,99)",
    )
    group.add_argument(
        "--goodput",
        nargs="+",
        default=[],
        metavar="NAME:MS",
        help="count the answers that have met all of these, as ttft:200 tpot:50",
    )
    group.add_argument("--json", action="store_true", help="print JSON instead of the table")
    group.add_argument(
        "--output-json", type=Path, metavar="FILE", help="write the same JSON into this file too"
    )
    group.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw the times, or those of each rate of --sweep; .svg or .html",
    )
    group.add_argument(
        "--save-result", action="store_true", help="write JSON into a file named after the run"
    )
    group.add_argument(
        "--save-detailed", action="store_true", help="with the lengths and times of each answer"
    )
    group.add_argument("--result-dir", type=Path, metavar="DIR", help="of that file (here)")
    group.add_argument("--result-filename", metavar="FILE", help="(by model, rate and time)")
    group.add_argument("--label", metavar="NAME", help="a name for the file (the backend)")
    group.add_argument(
        "--metadata", nargs="+", default=[], metavar="KEY=VALUE", help="more for the file"
    )
    group.add_argument("--disable-tqdm", action="store_true", help="show no progress")


def check(arguments: argparse.Namespace) -> None:
    """Refuse values that cannot be measured."""
    if arguments.served_model_name is not None:  # vLLM's --model names the tokenizer too
        arguments.model = arguments.served_model_name
    check_data(arguments)
    check_least(arguments, {"max_concurrency": 1, "num_warmups": 0})
    if not arguments.request_rate > 0 or not arguments.burstiness > 0:
        raise UsageError("--request-rate and --burstiness must be more than 0")
    if arguments.self_timed and arguments.dataset_name not in _HAS_TIMES:
        raise UsageError(
            f"--self-timed is for traces, {', '.join(_HAS_TIMES)}; {arguments.dataset_name} has no "
            "times of its own"
        )
    _check_ramp(arguments)
    _check_sweep(arguments)
    if arguments.result_dir is not None and not arguments.result_dir.is_dir():
        raise UsageError(f"--result-dir {arguments.result_dir} is no directory")
    check_plot(arguments.plot)
    for flag in ("plot", "output_json"):
        check_parent(f"--{flag.replace('_', '-')}", getattr(arguments, flag))


def notes_of(arguments: argparse.Namespace) -> list[str]:
    """Return what to say about vLLM's flags that have no effect here."""
    given = [name for name in _OF_TOKENIZERS if getattr(arguments, name)]
    return [
        f"--{name.replace('_', '-')} has no effect: the server counts the tokens" for name in given
    ]


def check_plot(path: Path | None) -> None:
    """Refuse a file for a picture whose name does not say which form it has."""
    if path is not None and path.suffix not in (".svg", ".html"):
        raise UsageError(f"--plot {path} must end with .svg or .html")


def check_parent(flag: str, path: Path | None) -> None:
    """Refuse a file that cannot be written because its directory is missing."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise UsageError(f"{flag} {path} must be a file in a directory that exists")


def _check_ramp(arguments: argparse.Namespace) -> None:
    """Refuse half a ramp, and one beside another pace."""
    first, last = arguments.ramp_up_start_rps, arguments.ramp_up_end_rps
    if arguments.ramp_up_strategy is None:
        if first is not None or last is not None:
            raise UsageError("--ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy")
        return
    if first is None or last is None or not 0 < first <= last < math.inf:
        raise UsageError(
            "--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps, more than 0 and "
            "the second not less than the first"
        )
    if arguments.request_rate < math.inf or arguments.self_timed or arguments.sweep:
        raise UsageError(
            "--ramp-up-strategy is a pace; leave out --request-rate, --self-timed and --sweep"
        )


def _check_sweep(arguments: argparse.Namespace) -> None:
    """Refuse a search that has no goal, and rates that are none."""
    if arguments.sweep is None:
        return
    if not arguments.goodput:
        raise UsageError("--sweep needs --goodput, as in --goodput ttft:500 tpot:100")
    if not 0 < arguments.goodput_share <= 1:
        raise UsageError(f"--goodput-share {arguments.goodput_share:g} must be above 0, at most 1")
    rates_of(arguments.sweep)


def rates_of(text: str) -> list[float]:
    """Return the rates of `--sweep=1,2,4`; none if the command is to find them."""
    if text == "auto":
        return []
    try:
        rates = sorted({float(each) for each in text.split(",")})
    except ValueError:
        rates = [-1.0]
    if not all(0 < each < math.inf for each in rates) or len(rates) > _MOST_RATES:
        raise UsageError(
            f"--sweep={text[:80]} must be at most {_MOST_RATES} rates above 0, as in --sweep=1,2,4"
        )
    return rates


def is_self_timed(arguments: argparse.Namespace) -> bool:
    """Return whether requests are sent at times of their own."""
    if arguments.self_timed is not None or arguments.ramp_up_strategy is not None:
        return bool(arguments.self_timed)
    return arguments.dataset_name in _SELF_TIMED


def ignores_eos(arguments: argparse.Namespace) -> bool:
    """Return whether answers go on to their full length, which these data are about."""
    if arguments.ignore_eos is not None:
        return bool(arguments.ignore_eos)
    return arguments.dataset_name in ("random", *_SELF_TIMED)


def url_of(arguments: argparse.Namespace) -> str:
    """Return the server's URL, which is given in one way."""
    has_host = arguments.host is not None or arguments.port is not None
    if sum((arguments.url is not None, arguments.base_url is not None, has_host)) > 1:
        raise UsageError("give the server once: URL, --base-url, or --host and --port")
    host = "127.0.0.1" if arguments.host is None else arguments.host
    port = 8000 if arguments.port is None else arguments.port
    shown = f"[{host}]" if ":" in host else host
    url: str | None = arguments.url or arguments.base_url
    return url or f"http://{shown}:{port}"


def names_of(text: str) -> list[str]:
    """Return the times that are shown."""
    from octavo.bench.served.figures import TIMES

    names = [each.strip() for each in text.split(",") if each.strip()]
    if wrong := [each for each in names if each not in TIMES]:
        raise UsageError(f"--percentile-metrics: {wrong[0]!r} is none of {', '.join(TIMES)}")
    return names


def percentiles_of(text: str) -> list[float]:
    """Return the percentiles that are shown, from 0 to 100."""
    try:
        found = [float(each) for each in text.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= each <= 100 for each in found):
        raise UsageError(f"--metric-percentiles {text[:80]} must be numbers from 0 to 100")
    return found


def pairs_of(name: str, words: Sequence[str]) -> dict[str, str]:
    """Return what words such as NAME=VALUE say, given to a flag."""
    pairs = {}
    for word in words:
        key, found, value = word.partition("=")
        if not (key and found) or not (key + value).isprintable():
            raise UsageError(f"--{name} {word[:80]!r} must be NAME=VALUE")
        pairs[key] = value
    return pairs
