"""Measures ranks: engines of two processes against one of as many threads, and what ranks cost.

    python -m benchmarks.native.ranks [MODEL] [--ranks 2] [--rounds 5] [--make-1b]

All engines have the same cores: `--ranks` threads in one process, or as many processes with one
thread each, which divide outputs, or add up. They take turns, so that what else the machine does
slows all; the figures are medians of rounds, and a ratio is that of the speeds in each round to
those of one process, its median. With --make-1b, MODEL is a
directory in which a model of the shape of a 1B Llama in bf16 is made, if there is none. Without
a model it measures a barrier, a sum of 2,048 numbers, and the time from the posting of a plan's
bytes until all other ranks have taken it and have said so.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from octavo import LLM, SamplingParams
from octavo.env import child_environment, child_module_path

PROMPT, STREAMS = 512, 32
PLAN_BYTES = 8192  # that of 32 sequences of some hundred tokens
MEMORY_BYTES = 16 << 20
MESSAGES = 20_000
SUM_WIDTH = 2048
_FOLLOWER = (
    "import sys; from tests.backends.native import _native_test as t; "
    "team = t.TestTeam(1, *map(int, sys.argv[1:5])); "
    "team.pass_barriers(int(sys.argv[5])); team.take(int(sys.argv[5]))"
)


_ADDS = (
    "import sys; from tests.backends.native import _native_test as t; "
    "sums = t.TestSums(*map(int, sys.argv[1:5])); rounds, width = map(int, sys.argv[5:7]); "
    "sums.add_up(1, width); sums.add_up(rounds - 1, width)"
)


def measure_sum(ranks: int) -> float:
    """Return the seconds of a sum over all ranks."""
    from tests.backends.native import _native_test

    memory = os.memfd_create("ranks")
    os.ftruncate(memory, MEMORY_BYTES)
    command = [sys.executable, "-c", _ADDS, str(memory), str(MEMORY_BYTES)]
    sums = _native_test.TestSums(memory, MEMORY_BYTES, 0, ranks)
    others = [
        subprocess.Popen(
            [*command, str(rank), str(ranks), str(MESSAGES), str(SUM_WIDTH)],
            pass_fds=[memory],
            env=child_environment({"PYTHONPATH": child_module_path()}),
        )
        for rank in range(1, ranks)
    ]
    sums.add_up(1, SUM_WIDTH)  # until all are there
    seconds, wrong = sums.add_up(MESSAGES - 1, SUM_WIDTH)
    assert not wrong, f"{wrong} sums are wrong"
    for each in others:
        each.wait()
    return seconds


def measure_exchange(ranks: int) -> tuple[float, float]:
    """Return the seconds of a barrier, and of a plan to all other ranks and back."""
    from tests.backends.native import _native_test

    memory = os.memfd_create("ranks")
    os.ftruncate(memory, MEMORY_BYTES)
    command = [sys.executable, "-c", _FOLLOWER, str(memory), str(MEMORY_BYTES)]
    team = _native_test.TestTeam(1, memory, MEMORY_BYTES, 0, ranks)
    others = [
        subprocess.Popen(
            [*command, str(rank), str(ranks), str(MESSAGES)],
            pass_fds=[memory],
            env=child_environment({"PYTHONPATH": child_module_path()}),
        )
        for rank in range(1, ranks)
    ]
    team.time_barriers(1)  # until all are there
    barrier = team.time_barriers(MESSAGES - 1)
    plan = team.post(MESSAGES, PLAN_BYTES)
    for each in others:
        each.wait()
    return barrier, plan


def prompts(count: int, length: int) -> list[dict[str, list[int]]]:
    """Return so many prompts that differ from their first token on."""
    return [
        {"prompt_token_ids": [(7 * i + 13 * j) % 200 + 3 for j in range(length)]}
        for i in range(count)
    ]


def generate(count: int, length: int, tokens: int) -> Callable[[LLM], float]:
    """Return what measures so many requests: the tokens in a second, of prompts or of answers."""

    def run(llm: LLM) -> float:
        settings = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        began = time.monotonic()
        answers = llm.generate(prompts(count, length), settings, use_tqdm=False)
        taken = time.monotonic() - began
        texts.append([list(each.outputs[0].token_ids) for each in answers])
        return count * (length if tokens == 1 else tokens) / taken

    texts: list[list[list[int]]] = []
    run.texts = texts  # type: ignore[attr-defined]
    return run


def compare(model: str, ranks: int, rounds: int) -> None:
    """Measure the engines in turns, and print a line for each case and form."""
    settings: dict[str, Any] = {
        "enable_prefix_caching": False,
        "max_num_seqs": STREAMS,
        "max_model_len": 1024,
    }
    one = LLM(model, num_threads=ranks, **settings)
    several = {
        form: LLM(
            model,
            num_threads=1,
            tensor_parallel_size=ranks,
            tensor_parallel_form=form,
            **settings,
        )
        for form in ("outputs", "sums")
    }
    cases = {
        "decode, 1 stream": generate(1, 16, 48),
        f"prompt of {PROMPT}": generate(1, PROMPT, 1),
        f"{STREAMS} streams": generate(STREAMS, 16, 32),
    }
    for name, run in cases.items():
        engines = [one, *several.values()]
        for llm in engines:
            run(llm)  # warm
        found = [[run(llm) for llm in engines] for _ in range(rounds)]
        texts = run.texts  # type: ignore[attr-defined]
        print(f"{name:18} {statistics.median(first for first, *_ in found):8.1f} tokens/s")
        for number, form in enumerate(several, start=1):
            ratios = [each[number] / each[0] for each in found]
            own = texts[number :: len(engines)]
            what = "OTHER TEXT" if any(each != own[0] for each in own) else "the same text"
            print(
                f"  {ranks} ranks, {form:8} {statistics.median(e[number] for e in found):8.1f}: "
                f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}); "
                f"{what} in all runs, {'as' if own[0] == texts[0] else 'not as'} in one process",
                flush=True,
            )
    for llm in (one, *several.values()):
        llm.close()


def compare_context(model: str, ranks: int, rounds: int, context: int) -> None:
    """Measure one stream behind a long prompt, whose KV is cached, in three engines in turns."""
    settings: dict[str, Any] = {"max_num_seqs": 1, "max_model_len": context + 64}
    engines = {
        "1 thread": LLM(model, num_threads=1, **settings),
        f"{ranks} threads": LLM(model, num_threads=ranks, **settings),
        f"{ranks} ranks": LLM(model, num_threads=1, tensor_parallel_size=ranks, **settings),
    }
    run = generate(1, context, 48)
    for llm in engines.values():
        run(llm)
    found = [{name: run(llm) for name, llm in engines.items()} for _ in range(rounds)]
    first = found[0]
    for name in first:
        ratios = [each[name] / each["1 thread"] for each in found]
        print(
            f"{name:10} {statistics.median(each[name] for each in found):8.1f} tokens/s behind "
            f"{context} tokens: {statistics.median(ratios):.3f} of one thread's "
            f"({min(ratios):.3f} to {max(ratios):.3f})",
            flush=True,
        )
    texts = run.texts  # type: ignore[attr-defined]
    print("the same text" if all(each == texts[0] for each in texts) else "OTHER TEXT")
    for llm in engines.values():
        llm.close()


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--make-1b", action="store_true")
    parser.add_argument("--context", type=int, help="measure one stream behind so many tokens")
    asked = parser.parse_args()
    print(f"a sum of {SUM_WIDTH} numbers over {asked.ranks} ranks: ", end="")
    print(f"{measure_sum(asked.ranks) * 1e6:.1f} µs")
    barrier, plan = measure_exchange(asked.ranks)
    print(f"a barrier of {asked.ranks} ranks: {barrier * 1e6:.1f} µs")
    print(f"a plan of {PLAN_BYTES} bytes to all ranks and back: {plan * 1e6:.1f} µs", flush=True)
    if asked.model is None:
        return
    if asked.make_1b:
        from benchmarks.peers.models import make_random_1b

        make_random_1b(Path(asked.model))
    if asked.context is not None:
        compare_context(asked.model, asked.ranks, asked.rounds, asked.context)
    else:
        compare(asked.model, asked.ranks, asked.rounds)


if __name__ == "__main__":
    main()
