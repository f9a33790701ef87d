"""The crash record and the reported size cover every step in flight."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from octavo.core.plan import NewSlot, StepPlan, StepResult
from octavo.core.sampling_params import SamplingParams
from octavo.exec.recording import RecordingExecutor, SuspectRecord


class Record:
    """A crash record that keeps what is written."""

    def __init__(self) -> None:
        self.written: list[tuple[int, ...]] = []

    def write(self, numbers: Sequence[int]) -> None:
        self.written.append(tuple(numbers))

    def last(self) -> tuple[int, ...]:
        """Return what was written last."""
        return self.written[-1]


class Executor:
    """An executor whose steps end in order, when they are collected with `wait`."""

    def __init__(self) -> None:
        self.plans: list[StepPlan] = []

    def submit(self, plan: StepPlan) -> None:
        self.plans.append(plan)

    def collect(self, wait: bool) -> StepResult | None:
        return StepResult(self.plans.pop(0).step, ()) if wait else None


def plan(step: int, *counts: int, freed: tuple[int, ...] = (), opened: int = 0) -> StepPlan:
    """Make a plan of slots 0, 1, …; the opened ones belong to requests 100, 101, …."""
    new = tuple(
        NewSlot(slot, str(100 + slot), array("i", [1]), 1, ((),), SamplingParams(), None)
        for slot in range(opened)
    )
    slots = tuple(range(len(counts)))
    starts, samples = (0,) * len(counts), (True,) * len(counts)
    return StepPlan(step, freed, new, (), (), slots, starts, counts, samples, ())


def test_a_long_step_counts_until_it_is_collected() -> None:
    """The front end waits longer for long steps, also while shorter ones are submitted."""
    record, sizes = Record(), [0]
    executor = RecordingExecutor(Executor(), SuspectRecord(record), sizes.append)
    executor.submit(plan(0, 500, 12, opened=2))
    assert sizes[-1] == 512
    executor.submit(plan(1, 1))
    assert sizes[-1] == 513
    assert record.written[-1] == (100, 101, 100)
    assert executor.collect(wait=False) is None
    assert sizes[-1] == 513
    assert executor.collect(wait=True) == StepResult(0, ())
    assert sizes[-1] == 1
    executor.submit(plan(2, 1, 1))
    assert sizes[-1] == 3
    assert record.written[-1] == (100, 100, 101)


def test_a_request_that_is_added_does_not_hide_the_steps_in_flight() -> None:
    """A crash of the core is also blamed on it, a crash of a step only on the step's requests."""
    record = Record()
    suspects = SuspectRecord(record)
    executor = RecordingExecutor(Executor(), suspects)
    executor.submit(plan(0, 3, 3, opened=2))
    executor.submit(plan(1, 1))
    suspects.add(7)
    assert record.last() == (7, 100, 101, 100)
    executor.collect(wait=True)
    assert record.last() == (100, 101, 100)
    suspects.add(8)
    assert record.last() == (8, 100)
    suspects.add(9)
    executor.submit(plan(2, 1, 1))
    assert record.last() == (100, 100, 101)
    suspects.rest()
    assert record.last() == ()
