"""Measure Python's time in a step of the native engine: the step without the native calls.

    python benchmarks/python_step.py                 a table by number of streams
    python benchmarks/python_step.py --json          one JSON object
    python benchmarks/python_step.py --cold 96       with 96 MB read in each step, as weights are
    python benchmarks/python_step.py --drafts 4      what a draft adds, with four for each stream
    python benchmarks/python_step.py --profile 32    a profile at 32 streams

A step is `EngineCore.step`: schedule, plan, batch, forward, sample, apply, and the events. The
figure is its thread's processor time less that of the calls into the extension, so other processes
disturb it little. The model is tiny, with SmolLM2's vocabulary: Python's part depends only on the
number of streams. A real one reads its weights in each step, so that Python finds its own memory in
no cache: `--cold` reads as much, outside of what is timed. Python then takes several times as long.

With `--drafts`, a proposer that takes no time proposes random tokens, which it says are right. A
round has an engine without drafts, one with one for each stream, and one with all; only steps with
so many count. Nearly all drafts are refused, so nothing of it is the work of further tokens.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import mmap
import pstats
import statistics
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # so that the program can be called by its path

from octavo.backends.native.backend import NativeBackend, NativeOptions  # noqa: E402
from octavo.backends.native.footprint import kv_pages  # noqa: E402
from octavo.backends.stored_rows import StoredRows  # noqa: E402
from octavo.core.config import CoreConfig  # noqa: E402
from octavo.core.engine import EngineCore  # noqa: E402
from octavo.core.plan import NewSlot  # noqa: E402
from octavo.core.request import Request  # noqa: E402
from octavo.core.sampling_params import SamplingParams  # noqa: E402
from octavo.exec.inline import InlineExecutor  # noqa: E402
from octavo.layers import ModelSpec  # noqa: E402
from octavo.layers.rope import Rope, plain  # noqa: E402
from octavo.models.build import bind  # noqa: E402
from octavo.models.kv_layout import place_layers  # noqa: E402
from octavo.models.llama import Llama  # noqa: E402
from octavo.runner.kv_cache import groups_of  # noqa: E402
from octavo.runner.model_runner import ModelRunner  # noqa: E402
from octavo.runner.speculate.proposer import Proposal, Turn  # noqa: E402

VOCABULARY = 49_152
HIDDEN, HEAD = 32, 8
STREAMS = (1, 2, 8, 32, 128)
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "warm": {"temperature": 0.8},
    "top-p": {"temperature": 0.8, "top_p": 0.9, "top_k": 40},
}
PROMPT_TOKENS = 20
WARM_UP_STEPS = 50
ROUNDS = 5  # with and without drafts
LEAST_STEPS = 20  # with all drafts that they may have
AIM_FIRST, AIM_FURTHER = 80.0, 3.0  # microseconds; docs/performance.md


class _Weights:
    """Small random numbers for every weight."""

    def __init__(self) -> None:
        self._shapes: dict[str, tuple[int, ...]] = {}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._shapes

    def check(self, expected: Any, extra: Any) -> None:
        self._shapes = dict(expected)

    def rows(self, name: str) -> StoredRows:
        generator = np.random.default_rng([*name.encode()])
        shape = self._shapes[name]
        values = generator.standard_normal(shape, np.float32) * np.float32(0.2)
        return StoredRows.of(values.reshape(-1, shape[-1]))

    def row_type(self, name: str) -> str:
        return "F32"

    def is_in_act_order(self, name: str) -> bool:
        return False

    def stored_types(self) -> dict[str, str]:
        return {}


class Clock:
    """The sum of the thread's time inside native calls."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Run the call and add its time."""

        def run(*arguments: Any) -> Any:
            began = time.thread_time()
            answer = call(*arguments)
            self.seconds += time.thread_time() - began
            return answer

        return run


class Weights:
    """Memory that stands for a model's weights: to read it evicts all else from the caches."""

    def __init__(self, num_bytes: int) -> None:
        self._memory = np.zeros(0, np.uint64)
        if num_bytes:
            pages = mmap.mmap(-1, num_bytes)
            pages.madvise(mmap.MADV_HUGEPAGE)  # as weights are kept
            self._memory = np.frombuffer(pages, np.uint64)
            self._memory[:] = 1

    def read(self) -> None:
        """Read all of it."""
        if len(self._memory):
            self._memory.max()


class RandomDrafts:
    """A proposer of random tokens that it says are right; implements `Proposer`."""

    def __init__(self, most: int) -> None:
        self.most = most
        tokens = np.random.default_rng(2).integers(0, VOCABULARY, (64, most)).tolist()
        self._proposals = [Proposal(each, (0.99,) * most) for each in tokens]
        self._number = 0

    def open(self, new: NewSlot) -> None:
        pass

    def free(self, slot: int) -> None:
        pass

    def forget(self) -> None:
        pass

    def propose(self, turns: Sequence[Turn]) -> list[Proposal]:
        self._number += 1
        return [self._proposals[(self._number + turn.slot) % 64] for turn in turns]


class _Runner:
    """A runner of steps whose computation is timed; reading a step and its output is Python's."""

    def __init__(self, runner: Any, clock: Clock, weights: Weights) -> None:
        self._runner = runner
        self._clock = clock
        self._weights = weights

    def submit(self, batch: Any, draws: Any, masks: Any) -> Any:
        step = self._runner.submit(batch, draws, masks)

        def wait() -> None:
            step.wait()
            self._weights.read()

        return _Step(self._clock.timed(wait), step.take, step.done)


class _Step(NamedTuple):
    wait: Callable[[], None]
    take: Callable[[], Any]
    done: Callable[[], bool]


def make_core(
    num_streams: int,
    num_tokens: int,
    clock: Clock,
    weights: Weights | None = None,
    num_drafts: int = 0,
) -> EngineCore:
    """Build an engine over a tiny model whose native calls are timed."""
    spec = ModelSpec(
        vocabulary=VOCABULARY,
        hidden=HIDDEN,
        layers=1,
        heads=HIDDEN // HEAD,
        kv_heads=1,
        head_dim=HEAD,
        ffn=HIDDEN,
        eps=1e-6,
        activation="silu",
        max_len=2048,
        attention_scale=HEAD**-0.5,
        ropes=(Rope(plain(HEAD, 100.0)),),
        windows=(None,),
    )
    model = Llama(spec)
    layout = place_layers(model)
    backend = NativeBackend(NativeOptions(num_threads=1))
    bind(model, backend, _Weights())
    blocks = 1 + num_streams * -(-(PROMPT_TOKENS + num_tokens + 16) // 16)
    backend.prepare(model, layout, 16)
    backend.make_cache(blocks)
    runner_of_steps = _Runner(backend._runner, clock, weights or Weights(0))
    backend._runner = runner_of_steps  # type: ignore[assignment]
    config = CoreConfig(
        num_blocks=blocks,
        max_model_len=spec.max_len,
        groups=groups_of(layout, kv_pages(layout, 16, "bfloat16")),
        max_num_seqs=max(num_streams, 256),
        max_drafts=num_drafts,
    )
    proposer = RandomDrafts(num_drafts) if num_drafts else None
    runner = ModelRunner(backend, VOCABULARY, config, proposer=proposer)
    return EngineCore(config, InlineExecutor(runner), time.monotonic, b"key")


def begin(core: EngineCore, num_streams: int, num_tokens: int, way: str) -> None:
    """Add requests with different prompts, and step until all of them decode."""
    generator = np.random.default_rng(1)
    for number in range(num_streams):
        prompt = array("i", generator.integers(0, VOCABULARY, PROMPT_TOKENS).tolist())
        sampling = SamplingParams(max_tokens=num_tokens, ignore_eos=True, seed=number, **WAYS[way])
        core.on_event(Request(str(number), prompt, sampling, 0.0, eos_token_ids=(2,)))
    for _ in range(WARM_UP_STEPS):
        core.step()


def measure(
    num_streams: int, way: str, num_steps: int, weights: Weights, num_drafts: int = 0
) -> float:
    """Return the median microseconds of Python in a step."""
    clock = Clock()
    num_tokens = num_steps + WARM_UP_STEPS + 10
    core = make_core(num_streams, num_tokens, clock, weights, num_drafts)
    # The clock's own two readings a call are no part of the step.
    empty = clock.timed(lambda: None)
    began = time.thread_time()
    for _ in range(1000):
        empty()
    reading = (time.thread_time() - began - clock.seconds) / 1000
    begin(core, num_streams, num_tokens, way)
    stats, times = core.scheduler.lifecycle.stats, []
    for _ in range(num_steps):
        clock.seconds, counted = 0.0, stats.num_drafts
        began = time.thread_time()
        core.step()
        seconds = time.thread_time() - began - clock.seconds - reading
        if stats.num_drafts - counted == num_streams * num_drafts:
            times.append(seconds)
    if len(times) < LEAST_STEPS:
        raise SystemExit(f"{len(times)} steps had all drafts: raise --steps, or lower --drafts")
    return statistics.median(times) * 1e6


def measure_drafts(way: str, num_steps: int, weights: Weights, num_drafts: int) -> None:
    """Print what drafts add, by streams: the medians of rounds, and their ranges."""
    print("microseconds of Python that a step's first draft of each stream adds, and a further one")
    for streams in (1, 4, 16):
        first, further = [], []
        for _ in range(ROUNDS):
            without, one, all_drafts = (
                measure(streams, way, num_steps, weights, count) for count in (0, 1, num_drafts)
            )
            first.append((one - without) / streams)
            further.append((all_drafts - one) / (streams * (num_drafts - 1)))
        print(f"{streams:4} streams: {_summary(first)}; {_summary(further)}")


def _summary(times: Sequence[float]) -> str:
    return f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"


def profile(num_streams: int, way: str, num_steps: int, num_drafts: int) -> None:
    """Print a profile of Python's time."""
    num_tokens = num_steps + WARM_UP_STEPS + 10
    core = make_core(num_streams, num_tokens, Clock(), None, num_drafts)
    begin(core, num_streams, num_tokens, way)
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(num_steps):
        core.step()
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(30)


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object, no table")
    parser.add_argument("--steps", type=int, default=500, help="steps of every case (default 500)")
    parser.add_argument("--cold", type=int, default=0, metavar="MB", help="read so much a step")
    parser.add_argument("--profile", type=int, metavar="STREAMS", help="profile instead")
    parser.add_argument("--drafts", type=int, default=0, metavar="K", help="what these add")
    parser.add_argument("--way", choices=WAYS, default="warm", help="what to profile, or to draft")
    asked = parser.parse_args()
    if not 1 <= asked.steps <= 1900:
        parser.error(f"--steps {asked.steps}: from 1 to 1900, which the model's length allows")
    if asked.profile:
        profile(asked.profile, asked.way, asked.steps, asked.drafts)
        return
    if not 0 <= asked.cold <= 4096:
        parser.error(f"--cold {asked.cold}: from 0 to 4096 MB")
    if asked.drafts and not 2 <= asked.drafts <= 16:
        parser.error(f"--drafts {asked.drafts}: from 2 to 16")
    weights = Weights(asked.cold << 20)
    if asked.drafts:
        measure_drafts(asked.way, asked.steps, weights, asked.drafts)
        return
    figures = {way: {n: measure(n, way, asked.steps, weights) for n in STREAMS} for way in WAYS}
    if asked.json:
        print(json.dumps(figures))
        return
    aim = f"the aim: {AIM_FIRST:g}, and {AIM_FURTHER:g} for each further one"
    print(f"microseconds of Python in a step, by streams; {aim}")
    print(f"{'':8}", *(f"{n:>8}" for n in STREAMS), " a further one")
    for way, row in figures.items():
        further = (row[STREAMS[-1]] - row[1]) / (STREAMS[-1] - 1)
        print(f"{way:8}", *(f"{each:8.0f}" for each in row.values()), f"{further:10.2f}")


if __name__ == "__main__":
    main()
