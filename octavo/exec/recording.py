"""Records which requests are in the steps in flight, since one of them may crash the engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Protocol

from octavo.core.engine import Executor
from octavo.core.plan import StepPlan, StepResult


class CrashRecordWriter(Protocol):
    """The part of a crash record that the engine uses."""

    def write(self, numbers: Sequence[int]) -> None:
        """Record the requests of the next step."""


class SuspectRecord:
    """Keeps a crash record at the requests that may be at fault if the engine dies now.

    These are the requests of all steps in flight, those that are worked on beside the steps and,
    until the next step is submitted or collected, the request that was added last.
    """

    def __init__(self, record: CrashRecordWriter) -> None:
        self._record = record
        self._in_flight: deque[tuple[int, ...]] = deque()
        self._beside: dict[int, None] = {}
        self._has_added = False

    def submit(self, numbers: tuple[int, ...]) -> None:
        """Record the requests of one more step in flight."""
        self._in_flight.append(numbers)
        self._write()

    def add(self, number: int) -> None:
        """Record a request that is about to be added, which may crash the core."""
        self._write(number)

    def begin_command(self) -> None:
        """Record the steps in flight alone: a command, which is no request's, may crash now."""
        self._write()

    def begin(self, number: int) -> None:
        """Record a request that is worked on beside the steps, until `end`."""
        self._beside[number] = None
        self._write()

    def end(self, number: int) -> None:
        """Record that the work on a request beside the steps has ended."""
        self._beside.pop(number, None)
        self._write()

    def settle(self) -> None:
        """Record the steps in flight alone: what was added did not crash the core."""
        if self._has_added:
            self._write()

    def collect(self) -> None:
        """Forget the oldest step; the record keeps it until it is written again."""
        self._in_flight.popleft()

    def rest(self) -> None:
        """Record that no request is being computed."""
        self._has_added = False
        self._record.write(tuple(self._beside))

    def _write(self, *added: int) -> None:
        # What was added comes first: the record may have no room for the last numbers.
        self._has_added = bool(added)
        self._record.write((*added, *self._beside, *chain.from_iterable(self._in_flight)))


class RecordingExecutor:
    """An executor that records the requests of each plan before the plan runs."""

    def __init__(
        self,
        executor: Executor,
        record: SuspectRecord,
        report_size: Callable[[int], None] | None = None,
    ) -> None:
        self._executor = executor
        self._record = record
        self._report_size = report_size  # called with the tokens of all steps in flight
        self._numbers: dict[int, int] = {}  # slot → request number
        self._slots: tuple[int, ...] = ()  # of the last plan
        self._of_slots: tuple[int, ...] = ()  # their request numbers
        self._sizes: deque[int] = deque()  # the tokens of each step in flight

    def submit(self, plan: StepPlan) -> None:
        for slot in plan.freed:
            self._numbers.pop(slot, None)
        for new in plan.opened:
            self._numbers[new.slot] = int(new.request_id)
        if plan.slots is not self._slots or plan.opened:
            numbers = self._numbers
            self._slots = plan.slots
            self._of_slots = tuple([numbers[slot] for slot in plan.slots])
        self._record.submit(self._of_slots)
        self._sizes.append(plan.num_tokens)
        self._report()
        self._executor.submit(plan)

    def collect(self, wait: bool) -> StepResult | None:
        self._record.settle()
        result = self._executor.collect(wait)
        if result is not None:
            self._record.collect()
            self._sizes.popleft()
            self._report()
        return result

    def _report(self) -> None:
        # With several steps in flight, the oldest is the one that takes its time.
        if self._report_size is not None:
            self._report_size(sum(self._sizes))
