"""Ten minutes with a card: what of the CUDA backend works there, in the order in which it may fail.

    python -m benchmarks.first_light MODEL --output report.json     on a machine with a card
    python -m benchmarks.first_light MODEL --kernels                the same, by Triton's kernels
    python -m benchmarks.first_light MODEL --device fake            a rehearsal, without one

MODEL is small: SmolLM2-135M, as a directory. Each stage is a process of its own with a limit of
time, and the later ones run whatever became of it; the report is written after each, so that a run
that is killed still says what it has seen. Nothing is downloaded. At the end stands a line for each
stage, with the command that repeats it alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

Findings = dict[str, Any]
_PROMPTS = (
    "The first light that reached the valley",
    "To measure is to know:",
    "def fibonacci(n):",
    "1, 2, 3, 5, 8,",
    "Dear Sir or Madam,",
    "Once upon a time there was a server",
    "The capital of France is",
    "Water boils at",
)
_OURS = "octavo"


class Asked(NamedTuple):
    """The model, the device, and the sizes of all stages."""

    model: str
    device: str
    num_tokens: int  # of an answer whose tokens are compared
    has_kernels: bool = False  # of Octavo; else torch's operations compute everything

    @property
    def is_fake(self) -> bool:
        """True for a rehearsal, in which speed means nothing."""
        return self.device == "fake"

    @property
    def options(self) -> dict[str, Any]:
        """The settings of every engine; the model of a rehearsal may be as small as it likes."""
        kernels = {"cuda_kernels": "triton"} if self.has_kernels else {}
        return kernels if self.is_fake else {"max_model_len": 1024, **kernels}


class Stage(NamedTuple):
    """A part of the report: a function, and the seconds that it may take."""

    work: Callable[[Asked], Findings]
    seconds: float


def facts(asked: Asked) -> Findings:
    """Return what the machine is, and the rates that bound every figure after it."""
    import torch

    found: Findings = {"torch": torch.__version__, "cuda": torch.version.cuda}
    found |= {"processor": _processor(), "threads": torch.get_num_threads()}
    if asked.is_fake:
        return found
    card = torch.device(asked.device)
    shown = torch.cuda.get_device_properties(card)
    found |= {"card": shown.name, "capability": f"{shown.major}.{shown.minor}"}
    found |= {
        "bytes": shown.total_memory,
        "driver": _first_line(Path("/proc/driver/nvidia/version")),
    }
    source = torch.empty(1 << 30, dtype=torch.uint8, device=card)
    target = torch.empty_like(source)
    found["copy_gb_s"] = 2 * 1.073741824 / _median_seconds(lambda: target.copy_(source), 20)
    host = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
    part = target[: 1 << 28]
    found["upload_gb_s"] = 0.268435456 / _median_seconds(lambda: part.copy_(host), 10)
    left = torch.randn(8192, 8192, device=card, dtype=torch.bfloat16)
    right = torch.randn(8192, 8192, device=card, dtype=torch.bfloat16)
    found["bf16_tflop_s"] = 2 * 8192**3 / _median_seconds(lambda: left @ right, 10) / 1e12
    return found


def start(asked: Asked) -> Findings:
    """Start the confined engine process, answer, kill it, and compare the stream that goes on."""
    return asyncio.run(_killed(asked))


async def _killed(asked: Asked) -> Findings:
    from octavo import AsyncLLM, SamplingParams

    began = time.perf_counter()
    llm = AsyncLLM(asked.model, engine="process", device=asked.device, **asked.options)
    found: Findings = {"ready_seconds": time.perf_counter() - began}
    sampling = SamplingParams(temperature=0.8, seed=1, ignore_eos=True, max_tokens=asked.num_tokens)

    async def answer(name: str, kills: bool) -> list[int]:
        ids: list[int] = []
        async for output in llm.generate(_PROMPTS[0], sampling, name):
            ids = list(output.outputs[0].token_ids)
            if kills and ids:
                kills = False
                for engine in _engines():
                    os.kill(engine, signal.SIGKILL)
        return ids

    try:
        await answer("first", kills=False)
        undisturbed = await answer("whole", kills=False)
        began = time.perf_counter()
        found["same_after_a_kill"] = await answer("killed", kills=True) == undisturbed
        found["seconds_with_a_kill"] = time.perf_counter() - began
        found["num_blocks"] = llm.snapshot().num_blocks
    finally:
        llm.shutdown()
    _demand(found, "same_after_a_kill")
    return found


def tokens(asked: Asked) -> Findings:
    """Compare the tokens of float32 with those of the reference on the CPU, greedy and drawn."""
    from octavo import SamplingParams

    found: Findings = {}
    ways = {
        "greedy": [SamplingParams(temperature=0, max_tokens=asked.num_tokens)] * len(_PROMPTS),
        "drawn": [
            SamplingParams(temperature=0.8, seed=each, max_tokens=asked.num_tokens)
            for each in range(len(_PROMPTS))
        ],
        "filtered": [
            SamplingParams(temperature=1, top_p=0.9, top_k=40, seed=3, max_tokens=asked.num_tokens)
        ]
        * len(_PROMPTS),
    }
    reference = _answers(asked._replace(has_kernels=False), ways, backend="torch", dtype="float32")
    card = _answers(asked, ways, device=asked.device, dtype="float32")
    for way, expected in reference.items():
        found[f"{way}_equal"] = sum(a == b for a, b in zip(expected, card[way], strict=True))
        found[f"{way}_first_difference"] = [
            _first_difference(a, b) for a, b in zip(expected, card[way], strict=True) if a != b
        ]
    found["answers"] = len(_PROMPTS)
    found["all_greedy_equal"] = found["greedy_equal"] == len(_PROMPTS)
    _demand(found, "all_greedy_equal")
    return found


def rows(asked: Asked) -> Findings:
    """Compare an answer alone with the same among others, and with itself, in bfloat16."""
    from octavo import LLM, SamplingParams

    sampling = SamplingParams(temperature=0.7, seed=5, max_tokens=asked.num_tokens, logprobs=1)
    llm = LLM(asked.model, device=asked.device, **asked.options, enable_prefix_caching=False)
    try:
        alone = [llm.generate(each, sampling, use_tqdm=False)[0].outputs[0] for each in _PROMPTS]
        again = [llm.generate(each, sampling, use_tqdm=False)[0].outputs[0] for each in _PROMPTS]
        together = llm.generate([*_PROMPTS] * 4, sampling, use_tqdm=False)
    finally:
        llm.close()
    beside = [each.outputs[0] for each in together[: len(_PROMPTS)]]
    pairs = [*zip(alone, beside, strict=True)]
    found: Findings = {
        "repeated_equal": sum(
            _with_bits(a) == _with_bits(b) for a, b in zip(alone, again, strict=True)
        ),
        "batched_tokens_equal": sum(a.token_ids == b.token_ids for a, b in pairs),
        "batched_bits_equal": sum(_with_bits(a) == _with_bits(b) for a, b in pairs),
        "answers": len(_PROMPTS),
    }
    found["repeats"] = found["repeated_equal"] == len(_PROMPTS)
    _demand(found, "repeats")
    return found


def drafts(asked: Asked) -> Findings:
    """Compare answers with and without drafts, in float32."""
    from octavo import SamplingParams

    text = "one two three four one two three four one two three"
    sampling = [SamplingParams(temperature=0.5, seed=2, max_tokens=asked.num_tokens)]
    ways = {"repeating": sampling}
    both = [
        _answers(asked, ways, (text,), device=asked.device, dtype="float32", **more)
        for more in ({}, {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}})
    ]
    found = {"equal": both[0] == both[1]}
    _demand(found, "equal")
    return found


def waits(asked: Asked) -> Findings:
    """Count the times that the host waited for the card beside the one of each step."""
    if asked.is_fake:
        return {"skipped": "the fake device refuses every wait by itself"}
    import torch

    from octavo import LLM, SamplingParams

    llm = LLM(asked.model, device=asked.device, **asked.options)
    sampling = SamplingParams(temperature=0.8, seed=1, ignore_eos=True, max_tokens=16)
    try:
        llm.generate(_PROMPTS[0], sampling, use_tqdm=False)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            llm.generate([*_PROMPTS], sampling, use_tqdm=False)
            torch.cuda.set_sync_debug_mode("default")
    finally:
        llm.close()
    places = [f"{_short(each.filename)}:{each.lineno}" for each in seen]
    found = {"waits": len(places), "places": sorted(set(places))[:20], "none": not places}
    _demand(found, "none")
    return found


def speed(asked: Asked) -> Findings:
    """Measure prefill and decode, each as the median of three runs."""
    from octavo import LLM, SamplingParams

    num_tokens = 4 if asked.is_fake else 64
    long = [[7 + at % 40 for at in range(64 if asked.is_fake else 512)]]
    llm = LLM(asked.model, device=asked.device, **asked.options, enable_prefix_caching=False)
    found: Findings = {}
    try:
        one = SamplingParams(temperature=0, ignore_eos=True, max_tokens=1)
        seconds = _median_of_three(lambda: llm.generate(long, one, use_tqdm=False))
        found["prefill_tokens_s"] = len(long[0]) / seconds
        more = SamplingParams(temperature=0, ignore_eos=True, max_tokens=num_tokens)
        for streams in (1, 8) if asked.is_fake else (1, 8, 32, 128):
            prompts = [[5 + each % 40, 6, 7] for each in range(streams)]

            def answer(prompts: list[list[int]] = prompts) -> object:
                return llm.generate(prompts, more, use_tqdm=False)

            found[f"decode_{streams}_tokens_s"] = streams * num_tokens / _median_of_three(answer)
    finally:
        llm.close()
    return found


def profile(asked: Asked) -> Findings:
    """Measure how long the card works in a decode step, and how many kernels are launched."""
    if asked.is_fake:
        return {"skipped": "there is no card whose time could be measured"}
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recorded

    from octavo import LLM, SamplingParams

    llm = LLM(asked.model, device=asked.device, **asked.options)
    sampling = SamplingParams(temperature=0, ignore_eos=True, max_tokens=16)
    try:
        llm.generate([*_PROMPTS], sampling, use_tqdm=False)
        began = time.perf_counter()
        with recorded(activities=[ProfilerActivity.CUDA]) as seen:
            llm.generate([*_PROMPTS], sampling, use_tqdm=False)
        seconds = time.perf_counter() - began
    finally:
        llm.close()
    kernels = [each for each in seen.key_averages() if each.self_device_time_total]
    busy = sum(each.self_device_time_total for each in kernels) / 1e6
    longest = sorted(kernels, key=lambda each: -each.self_device_time_total)[:8]
    return {
        "busy_share": busy / seconds,
        "launches_a_step": sum(each.count for each in kernels) / 17,  # one step is the prefill
        "longest": {each.key[:60]: each.self_device_time_total / 1e3 for each in longest},
    }


def kernels(asked: Asked) -> Findings:
    """Compare what each kernel computes with the operation that it replaces."""
    from importlib.util import find_spec

    from octavo.env import interprets_kernels

    if find_spec("triton") is None:
        return {"skipped": "Triton is not installed"}
    if asked.is_fake and not interprets_kernels():
        return {"skipped": "there is no card, and TRITON_INTERPRET is not 1"}
    from tests.gpu_blind.homes import Home, card, interpret
    from tests.gpu_blind.near import wrong_cases

    wrong = wrong_cases(Home(interpret) if asked.is_fake else card())
    found = {"wrong": wrong, "none_wrong": not wrong}
    _demand(found, "none_wrong")
    return found


STAGES = {
    "facts": Stage(facts, 60),
    "kernels": Stage(kernels, 120),
    "start": Stage(start, 120),
    "tokens": Stage(tokens, 150),
    "rows": Stage(rows, 60),
    "drafts": Stage(drafts, 45),
    "waits": Stage(waits, 45),
    "speed": Stage(speed, 90),
    "profile": Stage(profile, 60),
}


class DisagreementError(Exception):
    """A result that must be otherwise; what was found comes with it."""

    def __init__(self, found: Findings, name: str) -> None:
        super().__init__(f"{name} does not hold")
        self.found = found


def _demand(found: Findings, name: str) -> None:
    if not found[name]:
        raise DisagreementError(found, name)


def _answers(
    asked: Asked, ways: dict[str, Any], prompts: tuple[str, ...] = _PROMPTS, **options: Any
) -> dict[str, list[list[int]]]:
    """Return the tokens of all prompts in each way."""
    from octavo import LLM

    llm = LLM(asked.model, **asked.options, **options)
    try:
        return {
            way: [
                list(each.outputs[0].token_ids)
                for each in llm.generate([*prompts], sampling, use_tqdm=False)
            ]
            for way, sampling in ways.items()
        }
    finally:
        llm.close()


def _with_bits(output: Any) -> tuple[Any, ...]:
    """Return the tokens of an output with the sum of their log-probabilities, to the bit."""
    return tuple(output.token_ids), output.cumulative_logprob


def _first_difference(expected: list[int], found: list[int]) -> int:
    """Return the first position at which two answers differ."""
    pairs = zip(expected, found, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(found)))


def _engines() -> list[int]:
    """Return the engine processes of this one."""
    from octavo.client.client import ENGINE_PROGRAM

    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [
        int(each)
        for each in children
        if ENGINE_PROGRAM.encode() in Path(f"/proc/{each}/cmdline").read_bytes()
    ]


def _median_seconds(work: Callable[[], object], times: int) -> float:
    """Return the median time of some work on the card, which is waited for."""
    import torch

    seconds = []
    for _ in range(times + 2):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[2:])


def _median_of_three(work: Callable[[], object]) -> float:
    """Return the median time of three runs, after one that is not counted."""
    seconds = []
    for _ in range(4):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


def _processor() -> str:
    text = Path("/proc/cpuinfo").read_text()
    return next(
        (line.partition(":")[2].strip() for line in text.splitlines() if "name" in line), ""
    )


def _first_line(path: Path) -> str:
    return path.read_text().splitlines()[0] if path.exists() else ""


def _short(path: str) -> str:
    """Return a path without what stands before the package."""
    return path[path.rfind(_OURS) :] if _OURS in path else Path(path).name


def run_stage(name: str, asked: Asked) -> Findings:
    """Run a stage in this process; return what it found, or why it failed."""
    try:
        return {"verdict": "passed", **STAGES[name].work(asked)}
    except DisagreementError as error:
        return {"verdict": "failed", "why": str(error), **error.found}
    except Exception as error:
        last = traceback.format_exc().strip().splitlines()[-12:]
        why = f"{type(error).__name__}: {error}"
        return {"verdict": "failed", "why": why[:500], "trace": last}


def _separate(name: str, asked: Asked, scale: float) -> Findings:
    """Run a stage in a process of its own, within its time."""
    words = [sys.executable, "-m", "benchmarks.first_light", *_words(name, asked)]
    began, seconds = time.perf_counter(), STAGES[name].seconds * scale
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds, check=False)
        lines = done.stdout.strip().splitlines()
        found: Findings = json.loads(lines[-1]) if lines else {}
        if not found:
            found = {"verdict": "failed", "why": f"it ended with {done.returncode}"}
            found["trace"] = done.stderr.strip().splitlines()[-12:]
    except subprocess.TimeoutExpired:
        found = {"verdict": "failed", "why": f"it had not ended after {seconds:g} s"}
    except ValueError:
        found = {"verdict": "failed", "why": f"its output is no report: {lines[-1][:200]!r}"}
    return {**found, "seconds": round(time.perf_counter() - began, 2)}


def _words(name: str, asked: Asked) -> list[str]:
    device, tokens = ["--device", asked.device], ["--tokens", str(asked.num_tokens)]
    kernels = ["--kernels"] if asked.has_kernels else []
    return [asked.model, *device, *tokens, *kernels, "--stage", name]


def summary(asked: Asked, report: dict[str, Findings]) -> str:
    """Return a line for each stage, and the command that repeats one that failed."""
    lines = []
    for name, found in report.items():
        if "skipped" in found:
            lines.append(f"{name:8} skipped   {found['skipped']}")
        elif found["verdict"] == "passed":
            figures = [
                f"{key} {_shown(value)}" for key, value in found.items() if _is_figure(value)
            ]
            lines.append(f"{name:8} passed    {', '.join(figures)}")
        else:
            command = " ".join(["python -m benchmarks.first_light", *_words(name, asked)])
            lines.append(f"{name:8} FAILED    {found['why']}\n{'':18} {command}")
    return "\n".join(lines)


def _is_figure(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}"


def main() -> int:
    """Run all stages, or the one that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--scale", type=float, default=1.0, help="of the limits of time (1)")
    parser.add_argument("--stage", choices=tuple(STAGES))
    parser.add_argument("--kernels", action="store_true", help="engines use Triton's kernels")
    given = parser.parse_args()
    asked = Asked(given.model, given.device, given.tokens, given.kernels)
    if given.stage:
        found = run_stage(given.stage, asked)
        print(json.dumps(found))
        return int(found["verdict"] == "failed")
    report: dict[str, Findings] = {}
    for name in STAGES:
        report[name] = _separate(name, asked, given.scale)
        if given.output:
            given.output.write_text(json.dumps({"device": asked.device, **report}, indent=1))
        print(f"{name}: {report[name]['verdict']} after {report[name]['seconds']} s", flush=True)
    print(summary(asked, report))
    return int(any(each["verdict"] == "failed" for each in report.values()))


if __name__ == "__main__":
    sys.exit(main())
