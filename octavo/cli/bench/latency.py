"""Measures how long an engine takes for one batch of prompts, from the first to the last token.

The same batch is answered again and again in this process, as `vllm bench latency` does. Prompts
are random token ids, and answers go on behind the end of a text. Prefixes are not cached unless
--enable-prefix-caching is given: the second turn would find all of its prompts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from octavo.cli.bench.data_options import check_least
from octavo.cli.bench.offline import add_run_options, check_run, sampling_of, show
from octavo.cli.commands import INTERRUPTED, OK
from octavo.cli.engine_options import add_engine_options, add_model, engine_options, model_of
from octavo.cli.output import ProgressLine, table
from octavo.cli.parsing import Parser

_NUMBERS = {
    "input-len": (32, 1, "TOKENS", "of each prompt"),
    "output-len": (128, 1, "TOKENS", "of each answer"),
    "batch-size": (8, 1, "COUNT", "prompts at once"),
    "num-iters-warmup": (10, 0, "COUNT", "turns that are not counted"),
    "num-iters": (30, 1, "COUNT", "turns that are"),
}


def add_arguments(parser: Parser) -> None:
    """Add the model, the batch, the turns, the result, and the engine's flags."""
    add_model(parser)
    group = parser.add_argument_group("the batch")
    for name, (default, _, metavar, text) in _NUMBERS.items():
        group.add_argument(
            f"--{name}", type=int, default=default, metavar=metavar, help=f"{text} ({default})"
        )
    add_run_options(parser)
    add_engine_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Answer the batch in turns, and print or write the figures."""
    least = {name.replace("-", "_"): smallest for name, (_, smallest, *_) in _NUMBERS.items()}
    check_least(arguments, least)
    check_run(arguments)
    told = _measured(arguments, {"enable_prefix_caching": False} | engine_options(arguments))
    show(arguments, told, _as_text(told))
    count = len(told["latencies"])
    if count < arguments.num_iters:
        sys.stderr.write(f"interrupted after {count:,} turns\n")
        return INTERRUPTED
    return OK


def _measured(arguments: argparse.Namespace, options: dict[str, Any]) -> dict[str, Any]:
    import random

    from octavo.api.llm import LLM
    from octavo.bench.load.asked import written
    from octavo.bench.load.shapes import Lengths, random_lengths
    from octavo.bench.load.writers import token_ids
    from octavo.bench.offline import latencies, latency_figures, token_choices

    seed, progress = options.get("seed", 0), ProgressLine()
    num_warm_up, count = arguments.num_iters_warmup, arguments.num_iters
    whole = num_warm_up + count

    def watch(done: int) -> None:
        if progress.is_due(is_end=done == whole):
            progress.write(f"{done:,} of {whole:,} turns")

    with LLM(model_of(arguments), **options) as llm:
        lengths = Lengths(arguments.input_len, arguments.output_len)
        shapes = random_lengths(arguments.batch_size, lengths, random.Random(seed))
        asked = written(shapes, token_ids(token_choices(llm), str(seed)))
        found = latencies(llm, asked, sampling_of(arguments), num_warm_up, count, watch)
        name = llm.model.facts.name
    progress.close()
    figures = latency_figures(found)
    tokens = arguments.batch_size * arguments.n * arguments.output_len
    sizes = {name: getattr(arguments, name) for name in ("input_len", "output_len", "batch_size")}
    rate = {"output_tokens_per_second": tokens / figures["avg_latency"]}
    return {"model": name, **sizes, **figures, **rate}


def _as_text(told: Mapping[str, Any]) -> str:
    rows = [
        ("Turns:", f"{len(told['latencies']):,}"),
        ("Avg latency (s):", f"{told['avg_latency']:.4f}"),
        ("Std latency (s):", f"{told['std_latency']:.4f}"),
    ]
    rows += [(f"P{at} latency (s):", f"{each:.4f}") for at, each in told["percentiles"].items()]
    rows.append(("Output token throughput (tok/s):", f"{told['output_tokens_per_second']:.2f}"))
    return table(rows, right=(1,))
