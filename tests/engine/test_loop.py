"""The loop of the engine's process: the crash record while steps are in flight, and its rests."""

from __future__ import annotations

import math
import time
from array import array
from collections import deque
from collections.abc import Sequence

import pytest

from octavo.core.config import CoreConfig
from octavo.core.engine import EngineCore
from octavo.core.plan import NO_TOKEN, StepPlan, StepResult
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.core.stats import GRAMMAR
from octavo.engine.process import FREED_SECONDS, EngineLoop
from octavo.exec.recording import RecordingExecutor, SuspectRecord
from octavo.wire.channel import StepProgress
from octavo.wire.codec import request_to_wire
from octavo.wire.message_types import AddRequests, FromEngine, StepOutput, ToEngine


class Record:
    """A crash record without shared memory."""

    numbers: tuple[int, ...] = ()

    def write(self, numbers: Sequence[int]) -> None:
        self.numbers = tuple(numbers)


class Steps:
    """An executor whose steps end when they are waited for; it notes the record at each wait."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.at_wait: list[tuple[int, ...]] = []
        self.freed: list[tuple[int, ...]] = []  # by each plan
        self._plans: deque[StepPlan] = deque()

    def submit(self, plan: StepPlan) -> None:
        self.freed.append(plan.freed)
        self._plans.append(plan)

    def collect(self, wait: bool) -> StepResult | None:
        if not wait:
            return None
        self.at_wait.append(self.record.numbers)
        plan = self._plans.popleft()
        return StepResult(plan.step, tuple(7 if last else NO_TOKEN for last in plan.samples))


class Messages:
    """A channel whose messages are there already; a wait only moves its clock."""

    def __init__(self) -> None:
        self.inbox: deque[ToEngine] = deque()
        self.sent: list[FromEngine] = []
        self.late: deque[ToEngine] = deque()  # they come while the loop waits
        self.waits: list[float] = []
        self.now = 100.0

    def receive(self, seconds: float) -> ToEngine | None:
        if self.inbox:
            return self.inbox.popleft()
        if seconds > 0.0:
            self.waits.append(seconds)
            if seconds == math.inf:
                raise EndlessWaitError
            if self.late:
                return self.late.popleft()
            self.now += seconds
        return None

    def send(self, message: FromEngine) -> None:
        self.sent.append(message)

    def clock(self) -> float:
        """Return the time that has passed in waits."""
        return self.now


class EndlessWaitError(Exception):
    """The loop would wait until a message comes."""


def added(number: int, max_tokens: int) -> AddRequests:
    """Return the message that adds a request."""
    sampling = SamplingParams(max_tokens=max_tokens, seed=1)
    request = Request(str(number), array("i", [1, 2, 3]), sampling, arrival=0.0)
    return AddRequests((request_to_wire(request, number, None),))


def test_a_new_request_is_not_blamed_for_the_steps_in_flight() -> None:
    record, channel = Record(), Messages()
    steps, suspects = Steps(record), SuspectRecord(record)
    config = CoreConfig(num_blocks=40, max_model_len=64, max_num_seqs=1, pipeline_depth=2)
    core = EngineCore(config, RecordingExecutor(steps, suspects), time.monotonic, b"k" * 16)
    loop = EngineLoop(core, channel, suspects, StepProgress())
    channel.inbox.append(added(1, max_tokens=2))
    loop.run_step()
    loop.run_step()
    channel.inbox.append(added(2, max_tokens=3))
    loop.run_step()
    assert core.scheduler.queue.num_waiting == 1, "the new request has no slot yet"
    assert steps.at_wait == [(1, 1), (1,)]


def test_the_loop_rests_until_the_deadline_of_a_held_request() -> None:
    record, channel = Record(), Messages()
    suspects = SuspectRecord(record)
    config = CoreConfig(num_blocks=40, max_model_len=64, hold_seconds=5.0)
    core = EngineCore(config, RecordingExecutor(Steps(record), suspects), channel.clock, b"k" * 16)
    loop = EngineLoop(core, channel, suspects, StepProgress(), channel.clock)
    held = Request("3", array("i", [1]), SamplingParams(seed=1), arrival=0.0, holds=(GRAMMAR,))
    core.on_event(held)
    with pytest.raises(EndlessWaitError):
        loop.serve()
    assert channel.waits == [5.0, math.inf]
    outputs = [each for each in channel.sent if isinstance(each, StepOutput)]
    ends = [event.finish_reason for output in outputs for event in output.events]
    assert ends == ["error"]


def test_freed_slots_are_announced_with_the_next_request_if_one_comes_soon() -> None:
    record, channel = Record(), Messages()
    steps, suspects = Steps(record), SuspectRecord(record)
    core = EngineCore(
        CoreConfig(num_blocks=40, max_model_len=64),
        RecordingExecutor(steps, suspects),
        channel.clock,
        b"k" * 16,
    )
    loop = EngineLoop(core, channel, suspects, StepProgress(), channel.clock)
    channel.inbox.append(added(1, max_tokens=1))
    channel.late.append(added(2, max_tokens=1))
    with pytest.raises(EndlessWaitError):
        loop.serve()
    assert channel.waits == [FREED_SECONDS, FREED_SECONDS, math.inf]
    (first,), (second,) = steps.freed[1:]
    assert len(steps.freed) == 3, "a step for each request, and one for the last slot"
    assert first == second
