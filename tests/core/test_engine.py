"""The engine: events in, events out, one step at a time."""

import math
from collections import deque
from typing import Any

import pytest

from octavo.core.config import KVGroup
from octavo.core.engine import EngineCore
from octavo.core.kv.check import IntegrityError
from octavo.core.plan import StepResult
from octavo.core.request import Abort, Pause, Ready, ResetPrefixCache, Resume, TokenEvent
from octavo.core.stats import GRAMMAR, PAUSED
from tests.core.make import KEY, Wire, Worker, config, expected_output, request, tokens


class Clock:
    """A clock that moves only when a test moves it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def engine(depth: int = 1, check_interval: int = 1) -> tuple[EngineCore, Wire]:
    """Return an engine and the executor of its worker."""
    settings = config(pipeline_depth=depth)
    wire = Wire(Worker(settings))
    return EngineCore(settings, wire, Clock(), KEY, check_interval=check_interval), wire


def run(core: EngineCore) -> list[TokenEvent]:
    """Step while there is work."""
    events: list[TokenEvent] = []
    while core.has_work:
        events += core.step()
    return events


def text(events: list[TokenEvent]) -> list[int]:
    """Return all tokens of some events."""
    return [token for event in events for token in event.tokens]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_request_goes_in_and_its_tokens_come_out(depth: int) -> None:
    core, wire = engine(depth)
    assert not core.has_work
    core.on_event(request("a", 6, max_tokens=9))
    assert core.has_work
    events = run(core)
    assert text(events) == expected_output(tokens(6), 9)
    assert events[-1].finish_reason == "length"
    assert wire.worker.rows == {}, "the last freed slot was announced"


def test_a_step_with_nothing_to_do_does_nothing() -> None:
    core, wire = engine()
    assert core.step() == []
    assert wire.waits == []


def test_a_synchronous_engine_waits_for_each_result() -> None:
    core, wire = engine(1)
    core.on_event(request("a", 6, max_tokens=2))
    assert [len(text(core.step())) for _ in range(2)] == [1, 1]
    assert wire.waits == [True, True]


def test_an_engine_of_depth_2_waits_only_when_its_pipeline_is_full() -> None:
    core, wire = engine(2)
    core.on_event(request("a", 6, max_tokens=3))
    assert core.step() == []
    assert wire.waits == [False]
    assert len(text(core.step())) == 1
    assert wire.waits == [False, True]
    wire.num_arrived = 1
    assert len(text(core.step(wait=False))) == 1
    assert wire.waits[2:] == [False]


def test_a_full_pipeline_plans_nothing_more() -> None:
    core, wire = engine(2)
    core.on_event(request("a", 6, max_tokens=9))
    for _ in range(4):
        assert core.step(wait=False) == []
    assert len(wire.results) == 2


def test_rejections_and_aborts_are_events_of_the_next_step() -> None:
    core, _ = engine()
    core.on_event(request("empty", 0))
    core.on_event(request("a", 6))
    core.on_event(Abort("a"))
    core.on_event(Abort("nobody"))
    assert core.has_work
    assert [(e.request_id, e.finish_reason) for e in core.step()] == [
        ("empty", "refused"),
        ("a", "abort"),
    ]
    assert not core.has_work


def test_freed_slots_are_work_that_any_later_step_does() -> None:
    core, _ = engine()
    core.on_event(request("a", 6, max_tokens=1))
    assert not core.only_frees
    core.step()
    assert core.has_work
    assert core.only_frees
    core.on_event(request("b", 6, max_tokens=1))
    assert not core.only_frees
    core.step()
    core.step()
    assert not core.has_work
    assert not core.only_frees


def test_a_paused_engine_plans_nothing_until_it_is_resumed() -> None:
    core, wire = engine(2)
    core.on_event(request("a", 6, max_tokens=4))
    core.step()
    core.on_event(Pause())
    first = run(core)
    assert not core.has_work
    assert wire.results == deque()
    core.on_event(Resume())
    assert text(first + run(core)) == expected_output(tokens(6), 4)


@pytest.mark.parametrize("num_steps", [0, 1], ids=["at rest", "stepped all the same"])
def test_waiting_during_a_pause_counts_as_paused(num_steps: int) -> None:
    core, _ = engine()
    clock = core._clock
    assert isinstance(clock, Clock)
    core.on_event(Resume())  # without a pause, it changes nothing
    core.on_event(request("a", 6, max_tokens=1))
    events = []
    for command, now in ((Pause(), 2.0), (Pause(), 5.0), (Resume(), 12.0)):
        clock.now = now
        core.on_event(command)
        for _ in range(num_steps):
            events += core.step()
    clock.now = 13.0
    events += run(core)
    stats = events[-1].stats
    assert stats is not None
    assert stats.wait_seconds[PAUSED] == 10.0
    assert sum(stats.wait_seconds.values()) == (13.0 if num_steps == 0 else 12.0)


def test_an_engine_with_held_requests_alone_rests_until_their_deadline() -> None:
    settings = config(hold_seconds=5.0)
    clock = Clock()
    core = EngineCore(settings, Wire(Worker(settings)), clock, KEY)
    assert core.seconds_to_deadline() == math.inf
    core.on_event(request("late", 6, holds=(GRAMMAR,)))
    clock.now = 2.0
    core.on_event(request("ready", 6, max_tokens=2, holds=(GRAMMAR,)))
    assert not core.has_work
    assert core.seconds_to_deadline() == 3.0
    core.on_event(Ready("ready", GRAMMAR))
    assert text(run(core)) == expected_output(tokens(6), 2)
    clock.now = 5.0
    assert core.seconds_to_deadline() == 0.0
    assert [event.finish_reason for event in core.step()] == ["error"]
    assert core.seconds_to_deadline() == math.inf


@pytest.mark.parametrize(("reports", "num_reports"), [(False, 0), (True, 2)])
def test_a_request_may_have_an_event_for_each_part_of_its_prompt(
    reports: bool, num_reports: int
) -> None:
    settings = config(max_num_batched_tokens=4)
    core = EngineCore(settings, Wire(Worker(settings)), Clock(), KEY)
    core.on_event(request("a", 10, max_tokens=3, reports_prompt=reports))
    events = run(core)
    assert text(events) == expected_output(tokens(10), 3)
    before = [each for each in events if not each.tokens]
    assert len(before) == num_reports
    assert before == events[:num_reports]  # the last part comes with the first token
    for event in before:
        assert (event.position, event.finish_reason) == (0, None)
        assert event.stats is not None
        assert [chunk.end for chunk in event.stats.chunks] == [4, 8, 10]


def test_a_reset_makes_the_engine_compute_again() -> None:
    core, _ = engine()
    for name, reset in (("a", False), ("b", False), ("c", True)):
        if reset:
            core.on_event(ResetPrefixCache())
        core.on_event(request(name, 9, max_tokens=2))
        events = run(core)
        stats = events[-1].stats
        assert stats is not None
        assert stats.num_cached_tokens == (8 if name == "b" else 0)


@pytest.mark.parametrize(("interval", "noticed"), [(0, False), (1, True), (3, False)])
def test_the_engine_checks_its_integrity_at_an_interval(interval: int, noticed: bool) -> None:
    core, _ = engine(check_interval=interval)
    core.on_event(request("a", 6, max_tokens=9))
    core.step()
    core.scheduler.queue.num_tokens += 1
    if noticed:
        with pytest.raises(IntegrityError):
            core.step()
    else:
        core.step()


def test_an_unknown_command_is_an_error() -> None:
    core, _ = engine()
    with pytest.raises(AssertionError, match="sing a song"):
        core.on_event("sing a song")  # type: ignore[arg-type]


def test_an_executor_s_exception_leaves_the_engine() -> None:
    core, wire = engine()

    def lost(wait: bool) -> StepResult | None:
        raise ConnectionError("the worker is gone")

    wire.collect = lost  # type: ignore[method-assign]
    core.on_event(request("a", 6))
    with pytest.raises(ConnectionError):
        core.step()


@pytest.mark.parametrize(
    ("settings", "longest"),
    [
        ({"num_blocks": 100}, 64),  # max_model_len
        ({"num_blocks": 6}, 21),  # five blocks of four, and the last token without KV
        ({"num_blocks": 8, "groups": (KVGroup(), KVGroup())}, 13),
        ({"num_blocks": 40, "groups": (KVGroup(), KVGroup(4)), "long_prefill_tokens": 4}, 64),
    ],
)
def test_longest_tokens_is_the_longest_sequence_that_is_not_refused(
    settings: dict[str, Any], longest: int
) -> None:
    settled = config(max_model_len=64, block_size=4, **settings)
    core = EngineCore(settled, Wire(Worker(settled)), Clock(), KEY)
    assert core.longest_tokens == longest
    for max_tokens, reasons in ((longest - 5, []), (longest - 4, ["refused"])):
        core.on_event(request(str(max_tokens), 5, max_tokens=max_tokens))
        events = core.step()
        if longest < 64:  # max_model_len ends a longer sequence, it is not refused
            assert [event.finish_reason for event in events if event.finish_reason] == reasons
