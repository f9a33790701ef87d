"""The inline executor: it submits without waiting, collects in order, and hides no error."""

from __future__ import annotations

import pytest

from octavo.core.plan import StepPlan, StepResult
from octavo.exec.inline import InlineExecutor


class Step:
    """A step that is done when the test says so."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_done = False

    def done(self) -> bool:
        return self.is_done

    def collect(self) -> StepResult:
        if self.number == 12:
            raise MemoryError("no more")
        return StepResult(self.number, ())


class Runner:
    """A runner that computes nothing, and keeps the steps that were started."""

    def __init__(self) -> None:
        self.started: list[Step] = []

    def submit(self, plan: StepPlan) -> Step:
        if plan.step == 13:
            raise MemoryError("no more")
        self.started.append(Step(plan.step))
        return self.started[-1]


def make_plan(step: int) -> StepPlan:
    return StepPlan(step, (), (), (), (), (), (), (), (), ())


def test_steps_are_started_when_submitted_and_results_come_in_order() -> None:
    runner = Runner()
    executor = InlineExecutor(runner)
    assert executor.collect(wait=False) is None
    for number in range(3):
        executor.submit(make_plan(number))
    assert [step.number for step in runner.started] == [0, 1, 2]
    runner.started[1].is_done = True
    assert executor.collect(wait=False) is None  # the oldest still runs
    results = [executor.collect(wait=True), executor.collect(wait=False)]
    assert [result.step for result in results if result is not None] == [0, 1]
    assert executor.collect(wait=False) is None
    assert executor.collect(wait=True) == StepResult(2, ())


def test_waiting_for_nothing_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="no submitted plan"):
        InlineExecutor(Runner()).collect(wait=True)


def test_an_error_of_the_runner_is_raised_when_submitting_or_collecting() -> None:
    executor = InlineExecutor(Runner())
    with pytest.raises(MemoryError):
        executor.submit(make_plan(13))
    executor.submit(make_plan(12))
    with pytest.raises(MemoryError):
        executor.collect(wait=True)
