"""Measures stages: an engine whose stages compute different steps against one of as many threads.

    python -m benchmarks.native.stages MODEL [--stages 2] [--rounds 5] [--make-1b]

Three engines take turns, so that what else the machine does slows all: one process with `--stages`
threads, as many stages with one thread each, and such stages of which one computes at a time. The
figures are medians of rounds: of prompts, their tokens in a second; of streams, those of their
answers, whose time is that of long answers less that of answers of one token. A ratio is that to
the speed of the one process in each round, its median. With --make-1b, MODEL is a directory in
which a model of the shape of a 1B Llama in bf16 is made, if there is none.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from msgspec import structs

from benchmarks.native.ranks import prompts
from octavo import LLM, SamplingParams
from octavo.resolve import EngineConfig, resolve

STREAMS = (1, 8, 16, 32)
PROMPT, TOKENS = 16, 33
LONG_PROMPT, PROMPTS = 256, 4


@contextmanager
def one_step_at_a_time() -> Iterator[None]:
    """Let the stages of engines that are built meanwhile compute one step after the other."""

    def resolved(*arguments: Any, **named: Any) -> EngineConfig:
        config = resolve(*arguments, **named)
        core = replace(config.core, pipeline_depth=1, num_stages=1)
        return structs.replace(config, core=core)

    with mock.patch("octavo.engine.build.resolve", resolved):
        yield


def generate(llm: LLM, count: int, length: int, tokens: int) -> tuple[float, list[list[int]]]:
    """Return the seconds that so many requests take, and the tokens of their answers."""
    settings = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    began = time.monotonic()
    answers = llm.generate(prompts(count, length), settings, use_tqdm=False)
    taken = time.monotonic() - began
    return taken, [list(each.outputs[0].token_ids) for each in answers]


def measure(llm: LLM, count: int, length: int, tokens: int) -> tuple[float, list[list[int]]]:
    """Return the tokens in a second, of prompts or of what follows the first token, and answers."""
    first, answers = generate(llm, count, length, 1)
    if tokens == 1:
        return count * length / first, answers
    whole, answers = generate(llm, count, length, tokens)
    return count * (tokens - 1) / (whole - first), answers


def compare(model: str, stages: int, rounds: int) -> None:
    """Measure the engines in turns, and print a line for each case."""
    settings: dict[str, Any] = {
        "enable_prefix_caching": False,
        "max_num_seqs": max(STREAMS),
        "max_model_len": 1024,
    }
    divided: dict[str, Any] = {**settings, "num_threads": 1, "pipeline_parallel_size": stages}
    engines = {"one process": LLM(model, num_threads=stages, **settings)}
    engines["stages"] = LLM(model, **divided)
    with one_step_at_a_time():
        engines["one at a time"] = LLM(model, **divided)
    cases = [(count, PROMPT, TOKENS) for count in STREAMS]
    for case in [*cases, (PROMPTS, LONG_PROMPT, 1)]:
        for llm in engines.values():
            generate(llm, *case)  # warm
        found = [
            {name: measure(llm, *case) for name, llm in engines.items()} for _ in range(rounds)
        ]
        texts = [answers for each in found for _, answers in each.values()]
        is_same = all(each == texts[0] for each in texts)
        count, length, tokens = case
        print(
            f"{count} prompts of {length}" if tokens == 1 else f"{count} streams",
            "the same text" if is_same else "OTHER TEXT",
            sep=": ",
        )
        for name in engines:
            ratios = [each[name][0] / each["one process"][0] for each in found]
            print(
                f"  {name:14} {statistics.median(each[name][0] for each in found):8.1f} tokens/s, "
                f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
                flush=True,
            )
    for llm in engines.values():
        llm.close()


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--make-1b", action="store_true")
    asked = parser.parse_args()
    if asked.make_1b:
        from benchmarks.peers.models import make_random_1b

        make_random_1b(Path(asked.model))
    compare(asked.model, asked.stages, asked.rounds)


if __name__ == "__main__":
    main()
