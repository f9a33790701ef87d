"""Measure what speculation gains, on answers that repeat their prompts and on ordinary ones.

    python benchmarks/speculation.py [--model smollm2] [--method ngram] [--streams 1,8] [--rounds 5]
    python benchmarks/speculation.py --rows           the time of a step by its rows
    python benchmarks/speculation.py --drafter DIRECTORY [--kinds ordinary,held-out]

Two engines in one process, one with drafts and one without, answer the same prompts in turns, so
that other load on the machine affects both. Drafts are by prompt lookup, by suffixes of the text
itself (--method suffix; answers of earlier rounds are not kept, for they are the same), or by what
--drafter names. Prompts are those of `drafts/prompts.py`; `held-out` ones are others, with which
`train_draft.py` does not train either. A ratio is one round's time without by its time with; the
table has the median and the range. The answers must be equal. With --rows, the engine computes
steps with different numbers of drafts. On a machine that others use too, `--clock processor
--threads 1` gives the time that the process has had a processor for.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # so that the program can be called by its path

from benchmarks.draft_head.prompts import HELD_OUT  # noqa: E402
from benchmarks.drafts.prompts import ORDINARY, REPETITIVE  # noqa: E402
from octavo import LLM, SamplingParams  # noqa: E402
from octavo.observe.machine import processor  # noqa: E402
from octavo.runner.speculate import ngram  # noqa: E402
from octavo.runner.speculate.proposer import Proposal  # noqa: E402

KINDS = {"repetitive": REPETITIVE, "ordinary": ORDINARY, "held-out": HELD_OUT}
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
ROWS = (0, 1, 2, 3, 4, 5, 7, 11, 15)  # drafts of each sequence
ROWS_TOKENS = 24  # of each sequence, each in a step of its own
OPTIONS: dict[str, Any] = {"max_model_len": 1024}


def timed(
    llm: LLM, prompts: Sequence[str], sampling: SamplingParams, clock: Callable[[], float]
) -> tuple[list[Any], float]:
    """Answer the prompts together; return the outputs, and the seconds that it took."""
    conversations = [[{"role": "user", "content": prompt}] for prompt in prompts]
    began = clock()
    outputs = llm.chat(conversations, sampling, use_tqdm=False)
    seconds = clock() - began
    return outputs, seconds


def round_of(
    llm: LLM,
    prompts: Sequence[str],
    streams: int,
    sampling: SamplingParams,
    clock: Callable[[], float],
) -> tuple[list[Any], float]:
    """Answer all prompts, so many at a time; return the outputs and the seconds."""
    outputs: list[Any] = []
    total = 0.0
    for first in range(0, len(prompts), streams):
        some, seconds = timed(llm, prompts[first : first + streams], sampling, clock)
        outputs += some
        total += seconds
    return outputs, total


def tokens_of(outputs: Sequence[Any]) -> list[list[int]]:
    """Return the tokens of each answer."""
    return [list(output.outputs[0].token_ids) for output in outputs]


def counts_of(outputs: Sequence[Any]) -> dict[str, Any]:
    """Return the steps and the drafts of answers, these also by their place among a step's."""
    places: list[list[int]] = [[], []]
    for output in outputs:
        for sums, each in zip(
            places, (output.metrics.drafted_at, output.metrics.accepted_at), strict=True
        ):
            sums += [0] * (len(each) - len(sums))
            for place, count in enumerate(each):
                sums[place] += count
    steps = sum(output.metrics.num_decode_steps for output in outputs)
    return {
        "tokens": sum(map(len, tokens_of(outputs))),
        "tokens_a_step": 1 + sum(places[1]) / max(1, steps),
        "drafted": places[0],
        "accepted": places[1],
    }


def compare(
    plain: LLM, drafting: LLM, kind: str, streams: int, temperature: float, asked: Any
) -> dict[str, Any]:
    """Compare the engines on one kind of prompts; the first, unmeasured round fills the caches."""
    prompts = KINDS[kind]
    sampling = SamplingParams(temperature=temperature, max_tokens=asked.tokens, seed=1)
    ratios, speeds = [], []
    clock = CLOCKS[asked.clock]
    drafted: list[Any] = []
    for number in range(asked.rounds + 1):
        order = (plain, drafting) if number % 2 else (drafting, plain)
        results = {id(llm): round_of(llm, prompts, streams, sampling, clock) for llm in order}
        (expected, slow), (drafted, fast) = results[id(plain)], results[id(drafting)]
        if tokens_of(drafted) != tokens_of(expected):
            raise SystemExit(f"the answers differ: {kind}, temperature {temperature}")
        if number:
            ratios.append(slow / fast)
            speeds.append(sum(map(len, tokens_of(drafted))) / fast)
    return {
        "streams": streams,
        "kind": kind,
        "temperature": temperature,
        "ratio": statistics.median(ratios),
        "range": (min(ratios), max(ratios)),
        "tokens_per_second": statistics.median(speeds),
        **counts_of(drafted),
    }


def step_seconds(llm: LLM, streams: int, drafts: int, clock: Callable[[], float]) -> float:
    """Measure a step in which each sequence has so many drafts, all of them wrong."""
    sampling = SamplingParams(temperature=0.0, max_tokens=ROWS_TOKENS, ignore_eos=True)
    prompts = [ORDINARY[index % len(ORDINARY)] for index in range(streams)]
    with mock.patch.object(ngram.History, "draft", return_value=Proposal([0] * drafts)):
        _, seconds = timed(llm, prompts, sampling, clock)
    return seconds / ROWS_TOKENS


def measure_rows(asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure the time of a step by its rows, the least of all rounds."""
    options = {**OPTIONS, "num_threads": asked.threads, "max_num_seqs": max(asked.streams)}
    settings = {"method": "ngram", "num_speculative_tokens": max(ROWS)}
    with LLM(asked.model, **options, speculative_config=settings) as llm:
        least: dict[tuple[int, int], float] = {}
        for _ in range(asked.rounds + 1):
            for streams in asked.streams:
                for drafts in ROWS:
                    seconds = step_seconds(llm, streams, drafts, CLOCKS[asked.clock])
                    key = (streams, drafts)
                    least[key] = min(seconds, least.get(key, seconds))
    return [
        {"streams": streams, "drafts": drafts, "milliseconds": 1000 * seconds}
        for (streams, drafts), seconds in least.items()
    ]


def measure(asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Compare the engines in all cases."""
    options = {**OPTIONS, "num_threads": asked.threads}
    settings: dict[str, Any] = {"method": asked.method}
    if asked.method == "suffix":
        settings["suffix_decoding_max_cached_requests"] = 0
    if asked.drafter:
        settings = {"model": asked.drafter, "num_speculative_tokens": asked.drafts}
        settings["quantization"] = asked.quantization
    with (
        LLM(asked.model, **options) as plain,
        LLM(asked.model, **options, speculative_config=settings) as drafting,
    ):
        return [
            compare(plain, drafting, kind, streams, temperature, asked)
            for streams in asked.streams
            for kind in asked.kinds
            for temperature in asked.temperatures
        ]


def arguments() -> argparse.Namespace:
    """Parse the command line of the program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument(
        "--streams", default=[1, 8], type=lambda text: [int(each) for each in text.split(",")]
    )
    parser.add_argument("--method", choices=("ngram", "suffix"), default="ngram")
    parser.add_argument("--drafter", help="a drafter's directory, in place of prompt lookup")
    parser.add_argument("--quantization", help="what a drafter's floats become")
    parser.add_argument("--drafts", type=int, default=4, help="most drafts of a drafter in a step")
    parser.add_argument(
        "--kinds", default=["repetitive", "ordinary"], type=lambda text: text.split(",")
    )
    parser.add_argument(
        "--temperatures", default=[0.0, 0.8], type=lambda text: list(map(float, text.split(",")))
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128, help="most tokens of an answer")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--rows", action="store_true", help="measure the time of a step instead")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Measure, and print a table or JSON."""
    asked = arguments()
    results = measure_rows(asked) if asked.rows else measure(asked)
    name, _ = processor()
    if asked.json:
        print(json.dumps({"processor": name, "model": asked.model, "results": results}, indent=1))
        return
    threads = asked.threads or "all"
    print(f"{asked.model} on {name}, {threads} threads, {asked.clock} time, {asked.rounds} rounds")
    for result in results:
        if asked.rows:
            print("{streams:3} streams, {drafts:2} drafts: {milliseconds:7.2f} ms".format(**result))
            continue
        low, high = result["range"]
        print(
            "{streams:3} streams, {kind:10}, temperature {temperature}: {ratio:.2f} times as "
            "fast".format(**result)
            + f" ({low:.2f} to {high:.2f}); "
            "{tokens_per_second:.0f} tokens/s, {tokens_a_step:.2f} a step of {tokens} tokens; "
            "drafts by place {drafted}, accepted {accepted}".format(**result)
        )


if __name__ == "__main__":
    main()
