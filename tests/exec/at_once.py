"""A runner for the inline executor that computes each plan when it is submitted."""

from __future__ import annotations

from collections.abc import Callable

from octavo.core.plan import StepPlan, StepResult


class Finished:
    """A step that was computed when it was submitted."""

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def done(self) -> bool:
        return True

    def collect(self) -> StepResult:
        return self._result


class AtOnce:
    """A runner made of a function from a plan to its result."""

    def __init__(self, run: Callable[[StepPlan], StepResult]) -> None:
        self._run = run

    def submit(self, plan: StepPlan) -> Finished:
        return Finished(self._run(plan))
