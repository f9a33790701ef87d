"""The options of `octavo bench serve`, as those of vLLM, and what is wrong with their values."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from octavo.cli.parsing import Parser, UsageError
from octavo.options.values import json_object, seconds

ENDPOINTS = {
    "openai": "/v1/completions",
    "vllm": "/v1/completions",
    "openai-chat": "/v1/chat/completions",
}
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty")
_DATASETS = ("random", "prefix_repetition", "sharegpt", "custom")
_MOST_PROMPTS = 1_000_000


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
    _add_requests(parser)
    _add_sending(parser)
    _add_result(parser)


def _add_requests(parser: Parser) -> None:
    group = parser.add_argument_group("the requests")
    group.add_argument("--num-prompts", type=int, default=1000, metavar="COUNT", help="(1000)")
    group.add_argument(
        "--dataset-name",
        choices=_DATASETS,
        default="random",
        help="random words; prefix_repetition, of which many begin alike; sharegpt, a file of "
        "conversations; custom, a file with an object with `prompt` or `messages` on each line "
        "(random)",
    )
    group.add_argument("--dataset-path", type=Path, metavar="FILE", help="of sharegpt and custom")
    group.add_argument(
        "--random-input-len", type=int, default=1024, metavar="TOKENS", help="(1024)"
    )
    group.add_argument("--random-output-len", type=int, default=128, metavar="TOKENS", help="(128)")
    group.add_argument(
        "--random-prefix-len",
        type=int,
        default=0,
        metavar="TOKENS",
        help="that all prompts begin with, beside their own (0)",
    )
    group.add_argument(
        "--random-range-ratio",
        type=float,
        default=0.0,
        metavar="RATIO",
        help="lengths are drawn between 1 - RATIO and 1 + RATIO of these (0)",
    )
    group.add_argument(
        "--prefix-repetition-prefix-len", type=int, default=256, metavar="TOKENS", help="(256)"
    )
    group.add_argument(
        "--prefix-repetition-suffix-len", type=int, default=256, metavar="TOKENS", help="(256)"
    )
    group.add_argument(
        "--prefix-repetition-num-prefixes", type=int, default=10, metavar="COUNT", help="(10)"
    )
    group.add_argument(
        "--prefix-repetition-output-len", type=int, default=128, metavar="TOKENS", help="(128)"
    )
    group.add_argument(
        "--sharegpt-output-len", type=int, metavar="TOKENS", help="(as the recorded answers)"
    )
    group.add_argument("--custom-output-len", type=int, default=256, metavar="TOKENS", help="(256)")
    group.add_argument(
        "--ignore-eos", action="store_true", help="let answers go on behind the end of a text"
    )
    for name in SAMPLING:
        kind = int if name == "top_k" else float
        flag = f"--{name.replace('_', '-')}"
        group.add_argument(flag, type=kind, metavar="NUMBER", help="(the server's)")
    group.add_argument(
        "--extra-body", type=json_object, default={}, metavar="JSON", help="more of each request"
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
        "--num-warmups", type=int, default=0, metavar="COUNT", help="not counted (0)"
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
        "--metric-percentiles", default="99", metavar="NUMBERS", help="as 50,90,99 (99)"
    )
    group.add_argument(
        "--goodput",
        nargs="+",
        default=[],
        metavar="NAME:MS",
        help="count the answers that have met all of these, as ttft:200 tpot:50",
    )
    group.add_argument("--json", action="store_true", help="print JSON instead of the table")
    group.add_argument("--save-result", action="store_true", help="write JSON into a file")
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
    least = {
        "num_prompts": 1,
        "random_input_len": 1,
        "random_output_len": 1,
        "random_prefix_len": 0,
        "prefix_repetition_prefix_len": 0,
        "prefix_repetition_suffix_len": 1,
        "prefix_repetition_num_prefixes": 1,
        "prefix_repetition_output_len": 1,
        "sharegpt_output_len": 1,
        "custom_output_len": 1,
        "max_concurrency": 1,
        "num_warmups": 0,
    }
    for name, smallest in least.items():
        value = getattr(arguments, name)
        if value is not None and not smallest <= value <= _MOST_PROMPTS:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} {value} must be between {smallest} and {_MOST_PROMPTS:,}")
    if not arguments.request_rate > 0 or not 0 < arguments.burstiness < math.inf:
        raise UsageError("--request-rate and --burstiness must be more than 0")
    if not 0 <= arguments.random_range_ratio < 1:
        raise UsageError("--random-range-ratio must be at least 0 and less than 1")
    needs_file = arguments.dataset_name in ("sharegpt", "custom")
    if needs_file and arguments.dataset_path is None:
        raise UsageError(f"--dataset-name {arguments.dataset_name} needs --dataset-path FILE")
    if arguments.dataset_path is not None and not needs_file:
        raise UsageError("--dataset-path is for --dataset-name sharegpt and custom")
    if arguments.result_dir is not None and not arguments.result_dir.is_dir():
        raise UsageError(f"--result-dir {arguments.result_dir} is no directory")


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
