"""One engine: a scheduler, an executor, and the loop between them.

An engine does nothing but repeat `step`:

    now → schedule → plan → executor.submit        if fewer than `pipeline_depth` are in flight
    executor.collect → result → apply → events

With depth 2, plan N+1 is made while step N computes. The clock and the executor are arguments, so
that a simulation can replace both.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Protocol, assert_never

from octavo.core.check import check_integrity
from octavo.core.config import CoreConfig
from octavo.core.kv.policies import Pool
from octavo.core.kv.transfers import KVIndex
from octavo.core.plan import StepPlan, StepResult
from octavo.core.request import (
    Abort,
    Event,
    Pause,
    Ready,
    Request,
    ResetPrefixCache,
    Resume,
    TokenEvent,
)
from octavo.core.scheduler import Scheduler


class Executor(Protocol):
    """The connection to the workers: plans go out and results come back, both in order.

    A failure of a whole step is an exception, which ends the engine. A failure of one sequence is
    part of the result.
    """

    def submit(self, plan: StepPlan) -> None:
        """Start a step; it may still run when this method returns."""

    def collect(self, wait: bool) -> StepResult | None:
        """Return the oldest step's result; None if it is not there yet and `wait` is false."""


class EngineCore:
    """An engine without a loop of its own: events in, events out, one step at a time."""

    def __init__(
        self,
        config: CoreConfig,
        executor: Executor,
        clock: Callable[[], float],
        cache_key: bytes,
        *,
        pool: Pool | None = None,
        index: KVIndex | None = None,
        check_interval: int = 0,
    ) -> None:
        self.scheduler = Scheduler(config, cache_key, pool, index)
        self._executor = executor
        self._clock = clock
        self._check_interval = check_interval  # steps between integrity checks; 0: none
        self._outbox: list[TokenEvent] = []

    def on_event(self, event: Event | Ready) -> None:
        """Take a request or a command; its events are among those of the next step."""
        scheduler = self.scheduler
        match event:
            case Request():
                self._post(scheduler.add(event, self._clock()))
            case Abort():
                self._post(scheduler.abort(event.request_id, self._clock()))
            case Ready():
                self._post(scheduler.ready(event, self._clock()))
            case Pause():
                scheduler.pause(self._clock())
            case Resume():
                scheduler.resume(self._clock())
            case ResetPrefixCache():
                scheduler.reset_prefix_cache()
            case _:
                assert_never(event)

    def step(self, wait: bool = True) -> list[TokenEvent]:
        """Plan a step if another may be in flight, then apply a result if one has arrived.

        With `wait`, wait for the result if nothing more can be planned without it.
        """
        scheduler = self.scheduler
        plan = None
        if len(scheduler.in_flight) < scheduler.config.pipeline_depth:
            now = self._clock()
            if scheduler.queue.held:
                self._outbox.extend(scheduler.expire_holds(now))
            plan = scheduler.schedule(now)
            if plan is not None:
                self._executor.submit(plan)
        if scheduler.in_flight:
            full = len(scheduler.in_flight) >= scheduler.config.pipeline_depth
            result = self._executor.collect(wait and (full or plan is None))
            if result is not None:
                self._outbox.extend(scheduler.apply(result, self._clock()))
                if self._check_interval and result.step % self._check_interval == 0:
                    check_integrity(scheduler)
        events, self._outbox = self._outbox, []
        return events

    @property
    def has_work(self) -> bool:
        """True if a step has anything to do, now or when a result arrives.

        Held sequences alone are no work: `seconds_to_deadline` says when a step must end a hold.
        """
        return bool(self.scheduler.lifecycle.freed_slots) or self._has_more

    @property
    def only_frees(self) -> bool:
        """True if the next step would only announce freed slots, as any later step can too."""
        return bool(self.scheduler.lifecycle.freed_slots) and not self._has_more

    @property
    def _has_more(self) -> bool:
        """True if there is other work than to announce freed slots."""
        scheduler = self.scheduler
        if scheduler.in_flight or self._outbox or scheduler.awaits_transfers:
            return True
        return len(scheduler.sequences) > len(scheduler.queue.held) and not scheduler.paused

    def seconds_to_deadline(self) -> float:
        """Return for how long the engine may rest without work; infinity if nothing is held."""
        return self.scheduler.seconds_to_deadline(self._clock())

    @property
    def longest_tokens(self) -> int:
        """The most tokens of one sequence, output included: the model's length or the pool's."""
        scheduler = self.scheduler
        num_blocks, lengths = scheduler.config.num_blocks - 1, range(scheduler.config.max_model_len)
        # The last token's KV is never needed, so n positions suffice for n + 1 tokens.
        return bisect_right(lengths, num_blocks, key=scheduler.kv.peak_pages)

    def _post(self, event: TokenEvent | None) -> None:
        if event is not None:
            self._outbox.append(event)
