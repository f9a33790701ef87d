"""Measures an engine alone: how many requests and tokens it answers a second.

All requests are given to the engine at once, in this process, as `vllm bench throughput` does: what
a batch of many costs, without a server and without waiting clients. Random prompts are token ids.
Answers go on behind the end of a text, to the length that is asked for.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli.bench.data_options import add_data_options, check_data, check_least, data_of
from octavo.cli.commands import FAILED, OK
from octavo.cli.engine_options import add_engine_options, add_model, engine_options, model_of
from octavo.cli.output import table
from octavo.cli.parsing import Parser, UsageError

if TYPE_CHECKING:
    from octavo.api.adapters import LoRARequest

_MOST_ERRORS = 5  # different ones that are shown


def add_arguments(parser: Parser) -> None:
    """Add the model, the requests, the result, and the engine's flags."""
    add_model(parser)
    add_data_options(parser)
    add_run_options(parser)
    parser.add_argument(
        "--lora-path",
        nargs="+",
        default=[],
        metavar="DIR",
        help="adapters, one of which each request has by chance",
    )
    add_engine_options(parser)
    parser.add_aliases({"--prefix-len": "--random-prefix-len"})  # vLLM's shorter name


def add_run_options(parser: Parser) -> None:
    """Add how answers are made, and where the figures go."""
    parser.add_argument(
        "--n", type=int, default=1, metavar="COUNT", help="answers to each prompt (1)"
    )
    parser.add_argument(
        "--disable-detokenize", action="store_true", help="make no text of the answers' tokens"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument(
        "--output-json", type=Path, metavar="FILE", help="write the same JSON into this file too"
    )


def run(arguments: argparse.Namespace) -> int:
    """Answer the requests, and print or write the figures."""
    check_data(arguments)
    check_run(arguments)
    options = engine_options(arguments)
    if arguments.lora_path:
        options.setdefault("enable_lora", True)
    from octavo.bench.load.source import open_source

    source = open_source(data_of(arguments))
    told = _measured(arguments, options, source)
    errors = Counter(told.pop("errors"))
    show(arguments, told, _as_text(told))
    for error, count in errors.most_common(_MOST_ERRORS):
        sys.stderr.write(f"{count:,} failed: {error}\n")
    return OK if told["num_requests"] else FAILED


def check_run(arguments: argparse.Namespace) -> None:
    """Refuse values of the run that cannot be, and a file that cannot be written."""
    from octavo.cli.bench.serve_options import check_parent

    check_least(arguments, {"n": 1})
    check_parent("--output-json", arguments.output_json)


def _measured(
    arguments: argparse.Namespace, options: dict[str, Any], source: Any
) -> dict[str, Any]:
    import random

    from octavo.api.llm import LLM
    from octavo.bench.load.asked import with_adapters
    from octavo.bench.load.writers import token_ids
    from octavo.bench.offline import throughput, token_choices

    seed = options.get("seed", 0)
    adapters = adapters_of(arguments.lora_path)
    with LLM(model_of(arguments), **options) as llm:
        chance = random.Random(seed)
        asked = source(chance, token_ids(token_choices(llm), str(seed)))
        asked = with_adapters(asked, [each.lora_name for each in adapters], False, chance)
        found = throughput(llm, asked, sampling_of(arguments), adapters, shows_progress=True)
        head = {"model": llm.model.facts.name, "dataset_name": arguments.dataset_name}
    return {**head, **found.as_json(), "errors": found.errors}


def adapters_of(paths: list[str]) -> list[LoRARequest]:
    """Return the adapters of these directories, each by its path."""
    from octavo.api.adapters import LoRARequest

    if missing := [each for each in paths if not Path(each).exists()]:
        raise UsageError(f"--lora-path {missing[0]} does not exist")
    return [LoRARequest(path, number, path) for number, path in enumerate(paths, 1)]


def sampling_of(arguments: argparse.Namespace) -> Any:
    """Return how answers are drawn: at temperature 1 and to their full length, as vLLM's are."""
    from octavo.core.sampling_params import SamplingParams

    return SamplingParams(
        n=arguments.n,
        temperature=1.0,
        ignore_eos=True,
        detokenize=not arguments.disable_detokenize,
    )


def show(arguments: argparse.Namespace, told: Mapping[str, Any], text: str) -> None:
    """Print the table, or JSON, and write JSON into a file if one is named."""
    written = json.dumps(told, indent=1) + "\n"
    sys.stdout.write(written if arguments.json else text)
    if arguments.output_json is not None:
        arguments.output_json.write_text(written, "utf-8")


def _as_text(told: Mapping[str, Any]) -> str:
    rows = [
        ("Requests:", f"{told['num_requests']:,}"),
        ("Failed requests:", f"{told['num_failed']:,}"),
        ("Duration (s):", f"{told['elapsed_time']:.2f}"),
        ("Total input tokens:", f"{told['total_input_tokens']:,}"),
        ("Total generated tokens:", f"{told['total_output_tokens']:,}"),
        ("Request throughput (req/s):", f"{told['requests_per_second']:.2f}"),
        ("Output token throughput (tok/s):", f"{told['output_tokens_per_second']:.2f}"),
        ("Total token throughput (tok/s):", f"{told['tokens_per_second']:.2f}"),
    ]
    return table(rows, right=(1,))
