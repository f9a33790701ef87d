"""One engine: a scheduler, an executor, and the plans in flight between them.

`step` is the whole life of an engine:

    now → schedule → plan → executor.submit        as long as fewer than `pipeline_depth` fly
    executor.collect → result → apply → events

With depth 2, plan N+1 is made while step N computes. The clock and the executor are arguments,
so a test may put any world around it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Protocol, assert_never

from octavo.core.block_pool import BlockPool
from octavo.core.check import check_integrity
from octavo.core.config import CoreConfig
from octavo.core.plan import StepPlan, StepResult
from octavo.core.request import (
    Abort,
    Event,
    Pause,
    Request,
    ResetPrefixCache,
    Resume,
    TokenEvent,
)
from octavo.core.scheduler import Scheduler


class Executor(Protocol):
    """Carries plans to the workers and brings results back, both in order.

    Whatever goes wrong with all of a step is an exception, and the end of the engine; what goes
    wrong with one sequence is in the result.
    """

    def submit(self, plan: StepPlan) -> None:
        """Begin a step; it may still be running when this returns."""

    def collect(self, wait: bool) -> StepResult | None:
        """The oldest step's result; None if it is not there yet, and not to be waited for."""


class EngineCore:
    """Events in, events out, one step at a time."""

    def __init__(
        self,
        config: CoreConfig,
        executor: Executor,
        clock: Callable[[], float],
        cache_key: bytes,
        *,
        pool: BlockPool | None = None,
        check_interval: int = 0,
    ) -> None:
        self.scheduler = Scheduler(config, cache_key, pool)
        self._executor = executor
        self._clock = clock
        self._check_interval = check_interval  # steps between integrity checks; 0: none
        self._outbox: list[TokenEvent] = []

    def on_event(self, event: Event) -> None:
        """Take a request or a command; what follows from it is in the next step's events."""
        scheduler = self.scheduler
        match event:
            case Request():
                self._post(scheduler.add(event, self._clock()))
            case Abort():
                self._post(scheduler.abort(event.request_id, self._clock()))
            case Pause():
                scheduler.pause(self._clock())
            case Resume():
                scheduler.resume(self._clock())
            case ResetPrefixCache():
                scheduler.reset_prefix_cache()
            case _:
                assert_never(event)

    def step(self, wait: bool = True) -> list[TokenEvent]:
        """Plan one step if another may fly, then take one result if there is one to be had.

        With `wait`, a result is waited for when nothing more can be planned before it.
        """
        scheduler = self.scheduler
        plan = None
        if len(scheduler.flights) < scheduler.config.pipeline_depth:
            plan = scheduler.schedule(self._clock())
            if plan is not None:
                self._executor.submit(plan)
        if scheduler.flights:
            full = len(scheduler.flights) >= scheduler.config.pipeline_depth
            result = self._executor.collect(wait and (full or plan is None))
            if result is not None:
                self._outbox.extend(scheduler.apply(result, self._clock()))
                if self._check_interval and result.step % self._check_interval == 0:
                    check_integrity(scheduler)
        events, self._outbox = self._outbox, []
        return events

    @property
    def has_work(self) -> bool:
        """Whether a step could do anything, now or when a result comes back."""
        scheduler = self.scheduler
        if scheduler.flights or self._outbox or scheduler.freed_slots:
            return True
        return bool(scheduler.sequences) and not scheduler.paused

    @property
    def longest_tokens(self) -> int:
        """Tokens one sequence can have, its output included: the model's length, or what the KV
        pool holds."""
        scheduler = self.scheduler
        num_blocks, lengths = scheduler.config.num_blocks - 1, range(scheduler.config.max_model_len)
        # The last token's KV is never needed, so of n positions come n + 1 tokens.
        return bisect_right(lengths, num_blocks, key=scheduler.kv.peak_blocks)

    def _post(self, event: TokenEvent | None) -> None:
        if event is not None:
            self._outbox.append(event)
