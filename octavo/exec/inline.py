"""The executor without processes: the runner works in the caller's own thread, at once.

With a pipeline of several steps the plans run in order as they are submitted, and their results
wait to be collected; there is no overlap, but neither is there any other difference.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from octavo.core.plan import StepPlan, StepResult


class Runner(Protocol):
    """Whatever can run a plan: a ModelRunner, in the end."""

    def run(self, plan: StepPlan) -> StepResult:
        """Do a step."""


class InlineExecutor:
    """Implements `octavo.core.engine.Executor`. What the runner raises, `submit` raises."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._results: deque[StepResult] = deque()

    def submit(self, plan: StepPlan) -> None:
        self._results.append(self.runner.run(plan))

    def collect(self, wait: bool) -> StepResult | None:
        assert self._results or not wait, "waiting for a result of no plan"
        return self._results.popleft() if self._results else None
