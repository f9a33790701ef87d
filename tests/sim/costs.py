"""The time of steps in a world: what each takes, and the bound that the core must keep."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from octavo.core.config import CoreConfig
from octavo.core.engine import EngineCore
from octavo.core.kv.manager import KVManager
from octavo.core.plan import StepPlan, StepResult
from octavo.core.request import Request
from octavo.core.scheduler import Scheduler
from octavo.core.sequence import Sequence
from tests.sim.events import Arrival
from tests.sim.executor import Faults, SimExecutor
from tests.sim.extras import MOST_ENCODED
from tests.sim.kv.memory import require
from tests.sim.kv.store import Store
from tests.sim.truth import VOCABULARY

# A step may take so many times its goal, since the core learns from times with noise.
TOLERANCE = 1.6
# Steps of either kind, with and without prompts, after which an engine must keep the goal.
NUM_LEARNED = 6
STALL = 100.0  # times as long takes a step in which the machine stalls


@dataclass(frozen=True)
class Costs:
    """The seconds of a step as a function of its work, and how they vary."""

    constant: float
    token: float  # of each token that is decoded
    read: float  # of each position that those read
    prompt_token: float
    pair: float  # of each pair of a prompt's token and a position that it reads
    noise: float = 0.0  # the most by which a step takes longer, as a part of its time
    stall_rate: float = 0.0  # the chance of a stall

    def decoding(self, work: Work) -> float:
        """Return what a step would take without prompts, and without noise."""
        return self.constant + self.token * work.num_decoded + self.read * work.num_read

    def seconds(self, work: Work) -> float:
        """Return what a step takes without noise."""
        prompts = self.prompt_token * work.num_prompt + self.pair * work.num_pairs
        return self.decoding(work) + prompts


def draw_costs(rng: random.Random, config: CoreConfig) -> tuple[CoreConfig, Costs]:
    """Return costs, and a configuration with goals and long prompts for an engine that has them."""
    constant = rng.choice((0.005, 0.02, 0.1))
    costs = Costs(
        constant=constant,
        token=constant * rng.choice((0.0, 0.01, 0.1)),
        read=constant * rng.choice((0.0, 0.0005)),
        prompt_token=constant * rng.choice((0.005, 0.02, 0.1)),
        pair=constant * rng.choice((0.0, 0.00002, 0.0002)),
        noise=rng.choice((0.0, 0.1, 0.3)),
        stall_rate=rng.choice((0.0, 0.0, 0.02)),
    )
    is_fixed = rng.random() < 0.25
    config = replace(
        config,
        itl_goal=constant * rng.choice((1.5, 4.0)) if is_fixed else 0.0,
        itl_ratio=0.0 if is_fixed else rng.choice((2.0, 2.7)),
        ttft_goal=constant * rng.choice((3, 8, 20, 100)) if rng.random() < 0.4 else 0.0,
    )
    if not config.chunked_prefill:
        return config, costs
    config = replace(
        config,
        max_model_len=max(config.max_model_len, rng.choice((100, 200, 400))),
        block_size=max(4, config.block_size),
        max_num_batched_tokens=max(config.max_num_batched_tokens, rng.choice((64, 256, 512))),
        max_num_seqs=max(config.max_num_seqs, 8),
    )
    needed = KVManager(config, b"").peak_pages(config.max_model_len - 1, MOST_ENCODED)
    return replace(config, num_blocks=1 + max(1, needed) * rng.choice((1, 3, 6))), costs


def as_long_prompt(rng: random.Random, arrival: Arrival, longest: int) -> Arrival:
    """Return the arrival with a long prompt of its own, and a short answer."""
    length = rng.randint(longest // 3, max(1, longest - 10))
    prompt = tuple(rng.randrange(VOCABULARY) for _ in range(length))
    return replace(arrival, parent=None, prompt=prompt, max_tokens=rng.randint(1, 8), min_tokens=0)


def as_stream(rng: random.Random, arrival: Arrival) -> Arrival:
    """Return the arrival as one that decodes for long."""
    return replace(
        arrival,
        prompt=arrival.prompt[: rng.randint(1, 20)],
        max_tokens=rng.randint(50, 120),
        min_tokens=0,
        stop_token_ids=(),
        eos_token_ids=(),
    )


@dataclass
class Work:
    """The work of a step, as its plan says."""

    num_decoded: int = 0
    num_read: int = 0
    num_prompt: int = 0
    num_pairs: int = 0
    prompts: tuple[Sequence, ...] = ()  # those with a chunk


def work_of(plan: StepPlan, scheduler: Scheduler) -> Work:
    """Return the work of the newest plan."""
    work = Work()
    for slot, start, count in zip(plan.slots, plan.starts, plan.counts, strict=True):
        sequence = scheduler.lifecycle.slots[slot]
        assert sequence is not None, f"slot {slot} has a chunk and no sequence"
        if not sequence.catching_up or start >= len(sequence.tokens):
            work.num_decoded += count
            work.num_read += start
        else:
            work.num_prompt += count
            work.num_pairs += count * start + count * (count + 1) // 2
            work.prompts += (sequence,)
    return work


class TimeCheck:
    """The bound on the time of an engine's steps: it must hold once the engine has learned."""

    def __init__(self, costs: Costs, config: CoreConfig, seed: int) -> None:
        self.costs = costs
        self.config = config
        self._rng = random.Random(f"{seed} times")
        self._num_decoding = self._num_mixed = 0  # ended steps: with hardly any prompt, and others
        self._num_deferred = 0

    def check(self, work: Work, scheduler: Scheduler, now: float) -> None:
        """Check the work of a new plan."""
        config = self.config
        deferred = scheduler.stats.num_deferred_tokens - self._num_deferred
        self._num_deferred += deferred
        if not work.num_decoded:
            planned = [each.request_id for each in work.prompts]
            waits = scheduler.stats.recent[-1].num_preempted > 0 or any(
                not each.catching_up or each.num_expected > len(each.tokens)
                for each in scheduler.running
                if each.request_id not in planned
            )
            require(waits or not deferred, f"{deferred} tokens cut, and no sequence decodes")
            return
        self._check_progress(work, scheduler, is_cut=deferred > 0)
        is_least = work.num_prompt <= config.block_size
        if not config.chunked_prefill:
            is_least = len(work.prompts) <= 1
        is_due = any(
            each.stats.first_token_at is None and each.request.arrival + config.ttft_goal > now
            for each in work.prompts
        )
        if is_least or (config.ttft_goal and is_due):
            return
        if min(self._num_decoding, self._num_mixed) < NUM_LEARNED:
            return
        seconds = self.costs.seconds(work)
        goal = config.itl_goal or config.itl_ratio * self.costs.decoding(work)
        require(
            seconds <= TOLERANCE * goal,
            f"a step of {work.num_prompt} prompt tokens beside {work.num_decoded} others takes "
            f"{seconds:.4f} s, and the goal is {goal:.4f} s",
        )

    def _check_progress(self, work: Work, scheduler: Scheduler, *, is_cut: bool) -> None:
        """Check that the oldest prompt got a block's tokens, if any prompt was cut at all."""
        waiting = [each for each in scheduler.queue if each.order < scheduler.running[-1].order]
        prompts = [each for each in scheduler.running if each.catching_up]
        if not is_cut or waiting or not prompts:
            return
        oldest = prompts[0]
        is_planned = oldest.request_id in [each.request_id for each in work.prompts]
        has_drawn = oldest.num_expected > len(oldest.tokens)
        require(is_planned or has_drawn, f"{oldest.request_id} is cut to nothing")

    def take(self, work: Work) -> float:
        """Return how long a step takes, with noise."""
        seconds = self.costs.seconds(work) * (1 + self.costs.noise * self._rng.random())
        return seconds * (STALL if self._rng.random() < self.costs.stall_rate else 1.0)

    def end(self, work: Work) -> None:
        """Count a step that has ended."""
        if work.num_prompt <= self.config.block_size:
            self._num_decoding += 1
        else:
            self._num_mixed += 1


class Running(Protocol):
    """The world that runs: its engine, and its clock, which waiting for a step sets forward."""

    now: float
    engine: EngineCore


class TimedExecutor(SimExecutor):
    """An executor whose steps take their time, one after the other."""

    def __init__(
        self,
        config: CoreConfig,
        request_of: Callable[[str], Request],
        is_slow: Callable[[], bool],
        faults: Faults,
        check_plan: Callable[[StepPlan], None],
        store: Store,
        forces: bool,
        *,
        times: TimeCheck,
        world: Running,
    ) -> None:
        super().__init__(config, request_of, is_slow, faults, check_plan, store, forces)
        self._times = times
        self._world = world
        self._running: deque[tuple[Work, float]] = deque()  # seconds that each still takes
        self._looked_at = 0.0

    def submit(self, plan: StepPlan) -> None:
        """Check what the plan takes, and begin with it after those before it."""
        super().submit(plan)
        scheduler = self._world.engine.scheduler
        work = work_of(plan, scheduler)
        self._times.check(work, scheduler, self._world.now)
        self._pass()
        self._running.append((work, self._times.take(work)))

    def collect(self, wait: bool) -> StepResult | None:
        """Return the oldest result if its time is over, or wait until then."""
        self._pass()
        work, seconds = self._running[0]
        if seconds > 0.0 and not wait:
            return None
        result = super().collect(wait)
        if result is not None:
            self._world.now += seconds
            self._looked_at = self._world.now
            self._running.popleft()
            self._times.end(work)
        return result

    def _pass(self) -> None:
        """Subtract the time since the last look from what the steps still take."""
        passed = max(0.0, self._world.now - self._looked_at)
        self._looked_at = self._world.now
        for index, (work, seconds) in enumerate(self._running):
            self._running[index] = work, max(0.0, seconds - passed)
            passed = max(0.0, passed - seconds)
