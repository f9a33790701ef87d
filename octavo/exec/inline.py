"""The executor without processes: the runner runs in the caller's thread, at once.

With a pipeline of several steps, plans run in order as they are submitted, and their results wait
to be collected. Nothing overlaps; there is no other difference.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from octavo.core.plan import StepPlan, StepResult


class Runner(Protocol):
    """A thing that can run a plan, such as `ModelRunner`."""

    def run(self, plan: StepPlan) -> StepResult:
        """Run a plan; return its result."""


class InlineExecutor:
    """Implements `octavo.core.engine.Executor`. `submit` raises what the runner raises."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._results: deque[StepResult] = deque()

    def submit(self, plan: StepPlan) -> None:
        self._results.append(self.runner.run(plan))

    def collect(self, wait: bool) -> StepResult | None:
        assert self._results or not wait, "no submitted plan has a result to wait for"
        return self._results.popleft() if self._results else None
