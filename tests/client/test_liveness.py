"""Limits of time: restart delays, silence, steps that take too long, and stalls of our own."""

from __future__ import annotations

import pytest

from octavo.client.liveness import TICK_SECONDS, Liveness
from octavo.client.restart_policy import RestartPolicy, Timing
from octavo.wire.message_types import Heartbeat

TIMING = Timing(watchdog_seconds=10.0, watchdog_token_seconds=1.0, silence_seconds=2.0)


def test_restart_delays_grow_until_no_further_engine_is_started() -> None:
    timing = Timing(max_failed_engines=6, restart_delay_seconds=0.5, max_restart_delay_seconds=1.5)
    restarts = RestartPolicy(timing)
    delays = []
    for _ in range(6):
        restarts.note_end(0.0)
        delays.append(restarts.next_delay())
    assert delays == [0.0, 0.0, 0.5, 1.0, 1.5, None]
    assert restarts.num_restarts == 5
    assert "6 engines in a row" in restarts.give_up_message("x")
    restarts.note_progress()
    restarts.note_end(0.0)
    assert restarts.next_delay() == 0.0
    restarts.note_end(1000.0)  # it had been ready for long
    assert restarts.num_failed_engines == 0


def test_silence_and_steps_without_end_are_overdue() -> None:
    liveness = Liveness(TIMING, 0.0)
    liveness.note_ready(5.0)
    liveness.note_frame(5.0, None)
    assert liveness.overdue_reason(7.0, has_work=True) is None
    assert "no sign of life for 2.5 s" in str(liveness.overdue_reason(7.5, has_work=True))
    liveness.note_frame(20.0, Heartbeat(0, 15.0, 4))
    # The limit is 10 s, and 1 s for each of 4 tokens.
    assert liveness.overdue_reason(19.0, has_work=True) is None
    assert "step 0 was not done after 15.0 s" in str(liveness.overdue_reason(20.0, has_work=True))
    assert liveness.overdue_reason(20.0, has_work=False) is None
    liveness.note_frame(40.0, Heartbeat(1, 1.0, 4))  # the step is done
    assert liveness.overdue_reason(41.0, has_work=True) is None


def test_an_engine_is_fresh_until_half_of_the_permitted_silence_is_over() -> None:
    liveness = Liveness(TIMING, 0.0)
    liveness.note_ready(0.0)
    liveness.note_frame(0.0, None)
    for tick in range(1, 5):
        liveness.note_tick(tick * TICK_SECONDS)
        assert liveness.is_fresh(tick * TICK_SECONDS)
    liveness.note_tick(5 * TICK_SECONDS)
    assert not liveness.is_fresh(5 * TICK_SECONDS)


def test_a_stalled_front_end_does_not_call_the_engine_stale() -> None:
    """Signs of life may be unread, so no request is rejected because of our own stall."""
    liveness = Liveness(TIMING, 0.0)
    liveness.note_ready(0.0)
    liveness.note_frame(0.0, None)
    liveness.note_tick(TICK_SECONDS)
    assert liveness.is_fresh(60.0)
    liveness.note_tick(60.0)
    assert liveness.is_fresh(60.0)
    for tick in range(1, 6):
        liveness.note_tick(60.0 + tick * TICK_SECONDS)
    assert not liveness.is_fresh(60.0 + 5 * TICK_SECONDS)


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_a_jump_of_the_clock_ends_no_engine(jump: float) -> None:
    """The monotonic clock does not jump, except where a machine was suspended or moved."""
    liveness = Liveness(TIMING, 0.0)
    liveness.note_ready(0.0)
    liveness.note_frame(0.0, Heartbeat(1, 0.0, 4))
    for tick in range(1, 4):
        now = tick * TICK_SECONDS
        liveness.note_tick(now)
        liveness.note_frame(now, Heartbeat(1, now, 4))
        assert liveness.overdue_reason(now, has_work=True) is None
    for tick in range(1, 4):
        now = jump + (3 + tick) * TICK_SECONDS
        liveness.note_tick(now)
        assert liveness.overdue_reason(now, has_work=True) is None
        liveness.note_frame(now, Heartbeat(1, 0.0, 4))
        assert liveness.is_fresh(now)


def test_a_step_that_took_too_long_has_longer_in_the_next_engine() -> None:
    """A slow machine does not have its engines killed for the same step forever."""
    restarts = RestartPolicy(TIMING)
    assert restarts.step_timeout_factor() == 1.0
    restarts.note_end(0.0)
    liveness = Liveness(TIMING, 0.0, restarts.step_timeout_factor())
    liveness.note_ready(0.0)
    liveness.note_frame(28.0, Heartbeat(0, 28.0, 4))
    assert liveness.overdue_reason(28.0, has_work=True) is None  # twice 14 s
    liveness.note_frame(29.0, Heartbeat(0, 29.0, 4))
    assert "step 0 was not done" in str(liveness.overdue_reason(29.0, has_work=True))
    for _ in range(6):
        restarts.note_end(0.0)
    assert restarts.step_timeout_factor() == 8.0
    restarts.note_progress()
    assert restarts.step_timeout_factor() == 1.0


def test_an_hour_without_a_tick_is_not_held_against_the_engine() -> None:
    for is_ready in (True, False):
        liveness = Liveness(TIMING, 0.0)
        if is_ready:
            liveness.note_ready(TICK_SECONDS)
            liveness.note_frame(TICK_SECONDS, None)
        liveness.note_tick(TICK_SECONDS)
        liveness.note_tick(3600.0)
        assert liveness.overdue_reason(3600.0, has_work=True) is None
        seconds = liveness.seconds_ready(3600.0)
        assert seconds == pytest.approx(TICK_SECONDS if is_ready else 0.0)
