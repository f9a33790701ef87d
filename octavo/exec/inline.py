"""The executor without processes: the runner submits and collects in the caller's thread.

Steps overlap with the caller's work where the backend computes them in another thread.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from octavo.core.plan import StepPlan, StepResult


class Started(Protocol):
    """A step that a runner has submitted."""

    def done(self) -> bool:
        """Return whether `collect` need not wait."""

    def collect(self) -> StepResult:
        """Wait for the step; return its result, or raise its error."""


class Runner(Protocol):
    """A thing that can start plans in order, such as `ModelRunner`."""

    def submit(self, plan: StepPlan) -> Started:
        """Start a plan's step; it may still run when this method returns."""


class InlineExecutor:
    """Implements `octavo.core.engine.Executor`: a step's error is raised by either method."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._in_flight: deque[Started] = deque()

    def submit(self, plan: StepPlan) -> None:
        self._in_flight.append(self.runner.submit(plan))

    def collect(self, wait: bool) -> StepResult | None:
        in_flight = self._in_flight
        assert in_flight or not wait, "no submitted plan has a result to wait for"
        if not (in_flight and (wait or in_flight[0].done())):
            return None
        return in_flight.popleft().collect()
