"""The inline executor: it runs plans at once and in order, and hides no error."""

import pytest

from octavo.core.plan import StepPlan, StepResult
from octavo.exec.inline import InlineExecutor


class Runner:
    """A runner that returns the number of each plan."""

    def __init__(self) -> None:
        self.ran: list[int] = []

    def run(self, plan: StepPlan) -> StepResult:
        if plan.step == 13:
            raise MemoryError("no more")
        self.ran.append(plan.step)
        return StepResult(plan.step, ())


def make_plan(step: int) -> StepPlan:
    return StepPlan(step, (), (), (), (), (), (), (), (), ())


def test_plans_run_when_submitted_and_results_come_in_order() -> None:
    runner = Runner()
    executor = InlineExecutor(runner)
    assert executor.collect(wait=False) is None
    executor.submit(make_plan(0))
    executor.submit(make_plan(1))
    assert runner.ran == [0, 1]
    results = [executor.collect(wait=True), executor.collect(wait=False)]
    assert [result.step for result in results if result is not None] == [0, 1]
    assert executor.collect(wait=False) is None


def test_waiting_for_nothing_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="no submitted plan"):
        InlineExecutor(Runner()).collect(wait=True)


def test_an_error_of_the_runner_is_raised() -> None:
    with pytest.raises(MemoryError):
        InlineExecutor(Runner()).submit(make_plan(13))
