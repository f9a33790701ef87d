"""A scheduler whose `schedule` and `apply` are timed, with invented results.

    add ──▶ schedule ──▶ plan ──▶ invented result ──▶ apply ──▶ events, dropped
            └─ timed ─┘                              └ timed ┘

The time is the thread's CPU time, so that a shared machine gives nearly the figures of an idle
one; the wall time is recorded too. Neither making the result is timed, nor freeing a plan and its
events, which in an engine happens after they are sent. The garbage collector runs with its default
settings, and its share is recorded.
"""

from __future__ import annotations

import gc
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns, thread_time_ns
from typing import NamedTuple

from octavo.core.config import CoreConfig
from octavo.core.plan import NO_TOKEN, StepPlan, StepResult
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler import Scheduler

CACHE_KEY = b"a key for measurements only"
TOKEN = 7  # the sample of every chunk
END_TOKEN = 2  # … unless its sequence is to end
LONG = 1 << 20  # more tokens than a sequence has in any measurement
STEP_SECONDS = 0.02  # between two steps on the scheduler's clock
OLDEST_GENERATION = 2


class Sample(NamedTuple):
    """The times of one step, in nanoseconds of CPU time."""

    schedule_ns: int
    apply_ns: int
    wall_ns: int  # of both together
    young_gc_ns: int
    full_gc_ns: int

    @property
    def total_ns(self) -> int:
        """The time of schedule and apply together."""
        return self.schedule_ns + self.apply_ns


class Stopwatch:
    """A stopwatch for sections of code, with the share of the garbage collector."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start a new sample of one or more sections."""
        self.wall_ns = 0
        self.young_gc_ns = 0
        self.full_gc_ns = 0
        self._is_running = False

    def start(self) -> None:
        self._is_running = True
        self._wall_begin_ns = perf_counter_ns()
        self._begin_ns = thread_time_ns()

    def stop(self) -> int:
        """End a section and return its CPU time."""
        elapsed_ns = thread_time_ns() - self._begin_ns
        self.wall_ns += perf_counter_ns() - self._wall_begin_ns
        self._is_running = False
        return elapsed_ns

    def on_collection(self, phase: str, info: dict[str, int]) -> None:
        """Record a collection; gc.callbacks calls this before and after each one."""
        if phase == "start":
            self._collection_begin_ns = thread_time_ns()
        elif self._is_running:
            elapsed_ns = thread_time_ns() - self._collection_begin_ns
            if info["generation"] == OLDEST_GENERATION:
                self.full_gc_ns += elapsed_ns
            else:
                self.young_gc_ns += elapsed_ns


WATCH = Stopwatch()


@contextmanager
def watching_the_collector() -> Iterator[None]:
    """Record every garbage collection in the block."""
    gc.callbacks.append(WATCH.on_collection)
    try:
        yield
    finally:
        gc.callbacks.remove(WATCH.on_collection)


class World:
    """One scheduler, its clock, and the results not yet applied."""

    def __init__(self, config: CoreConfig) -> None:
        self.scheduler = Scheduler(config, CACHE_KEY)
        self.now = 0.0
        self.num_to_end = 0  # sequences that sample their end in the next step
        self._results: deque[StepResult] = deque()
        self._number = 0

    def request(
        self, num_tokens: int, *, lora: str | None = None, shared: array[int] | None = None
    ) -> Request:
        """Return a request with own tokens after those of `shared`, which does not end itself."""
        self._number += 1
        prompt = array("i", shared or ())
        # The first own token is the request's number, so that no two prompts are equal.
        prompt.extend([self._number, *range(num_tokens - len(prompt) - 1)])
        return Request(
            request_id=f"request-{self._number}",
            prompt=prompt,
            sampling=SamplingParams(max_tokens=LONG),
            arrival=float(self._number),
            eos_token_ids=(END_TOKEN,),
            lora=lora,
        )

    def add(self, request: Request) -> None:
        """Add a request, which must not be rejected."""
        refused = self.scheduler.add(request, self.now)
        assert refused is None, refused

    def add_waiting(self, count: int, num_tokens: int, lora: str | None = None) -> None:
        """Add `count` requests of this length to the queue."""
        for _ in range(count):
            self.add(self.request(num_tokens, lora=lora))

    def run_until_decoding(self, count: int) -> None:
        """Step until exactly `count` sequences run and each has sampled."""
        running = self.scheduler.running
        while len(running) != count or any(each.catching_up for each in running):
            self.step()
            running = self.scheduler.running

    def step(self) -> Sample:
        """Schedule, invent the result, and apply the oldest one if the pipeline is full."""
        scheduler = self.scheduler
        self.now += STEP_SECONDS
        WATCH.reset()
        WATCH.start()
        plan = scheduler.schedule(self.now)
        schedule_ns = WATCH.stop()
        assert plan is not None, "nothing was planned"
        self._results.append(self._answer(plan))
        apply_ns = 0
        if len(self._results) >= scheduler.config.pipeline_depth:
            result = self._results.popleft()
            WATCH.start()
            events = scheduler.apply(result, self.now)
            apply_ns = WATCH.stop()
            del events
        return Sample(schedule_ns, apply_ns, WATCH.wall_ns, WATCH.young_gc_ns, WATCH.full_gc_ns)

    def steps(self, count: int) -> list[Sample]:
        """Run `count` steps and return their samples."""
        return [self.step() for _ in range(count)]

    def _answer(self, plan: StepPlan) -> StepResult:
        tokens = [TOKEN if samples else NO_TOKEN for samples in plan.samples]
        for index, samples in enumerate(plan.samples):
            if self.num_to_end and samples:
                tokens[index] = END_TOKEN
                self.num_to_end -= 1
        return StepResult(plan.step, tuple(tokens))
