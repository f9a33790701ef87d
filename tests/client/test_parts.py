"""The parts that judge and remember, one by one: black box, suspicion, restarts, vigil."""

from __future__ import annotations

import os
from array import array

import pytest

from octavo.client.journal import Entry
from octavo.client.liveness import TICK_SECONDS, Liveness
from octavo.client.quarantine import Quarantine
from octavo.client.restart_policy import RestartPolicy, Timing
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.wire import crash_record as crash_record
from octavo.wire.crash_record import MAX_NUMBERS, CrashRecord
from octavo.wire.message_types import Pulse


def entry(name: str) -> Entry:
    return Entry(Request(name, array("i", [1]), SamplingParams(), 0.0))


def test_the_black_box_tells_the_other_side_what_was_written_last() -> None:
    descriptor = CrashRecord.make()
    writer, reader = CrashRecord(descriptor), CrashRecord(descriptor)
    os.close(descriptor)
    assert reader.read() == ()
    for numbers in ((1, 2**63), (7,), (), tuple(range(MAX_NUMBERS + 5))):
        writer.write(numbers)
        assert reader.read() == numbers[:MAX_NUMBERS]
    writer.close()
    reader.close()


def test_death_in_the_middle_of_a_write_leaves_what_was_written_before() -> None:
    descriptor = CrashRecord.make()
    writer, reader = CrashRecord(descriptor), CrashRecord(descriptor)
    os.close(descriptor)
    writer.write((1, 2, 3))
    begin = crash_record._HEADER_BYTES + (1 - writer._memory[0]) * crash_record._HALF_BYTES
    writer._memory[begin : begin + 12] = b"\xff" * 12  # as far as it came
    assert reader.read() == (1, 2, 3)
    reader._memory[crash_record._HEADER_BYTES :] = b"\xff" * (crash_record.SIZE_BYTES - 8)
    assert len(reader.read()) == MAX_NUMBERS  # whatever stands there, no more than fits


def test_two_crashes_without_a_token_lead_to_a_trial_and_a_third_to_a_verdict() -> None:
    suspicion, bad, other = Quarantine(), entry("bad"), entry("other")
    assert suspicion.death([bad, other], was_killed=False) is None
    assert not suspicion.is_trying
    other.emitted.append(5)
    assert suspicion.death([bad, other], was_killed=False) is None
    assert suspicion.next_trial() is bad  # the other one had moved on
    assert suspicion.is_trying
    assert suspicion.death([bad], was_killed=False) is bad
    assert not suspicion.is_trying


def test_a_token_frees_of_all_suspicion() -> None:
    suspicion, one = Quarantine(), entry("one")
    for _ in range(2):
        suspicion.death([one], was_killed=False)
    assert suspicion.next_trial() is one
    assert suspicion.acquit(one)
    assert one.strikes == 0
    assert suspicion.next_trial() is None


def test_kills_from_outside_count_half() -> None:
    suspicion, one = Quarantine(), entry("one")
    for _ in range(3):
        assert suspicion.death([one], was_killed=True) is None
    assert not suspicion.is_trying
    for _ in range(2):
        assert suspicion.death([one], was_killed=True) is None
        assert suspicion.next_trial() is one
    assert suspicion.death([one], was_killed=True) is one


def test_who_was_not_at_work_when_its_trial_ended_is_tried_again() -> None:
    suspicion, one = Quarantine(), entry("one")
    for _ in range(2):
        suspicion.death([one], was_killed=False)
    assert suspicion.next_trial() is one
    assert suspicion.death([], was_killed=False) is None
    assert suspicion.next_trial() is one
    assert suspicion.forget(one)


def test_rests_grow_and_the_last_engine_is_followed_by_none() -> None:
    restarts = RestartPolicy(Timing(max_barren=6, rest_seconds=0.5, max_rest_seconds=1.5))
    rests = []
    for _ in range(6):
        restarts.death(0.0)
        rests.append(restarts.rest())
    assert rests == [0.0, 0.0, 0.5, 1.0, 1.5, None]
    assert restarts.num_restarts == 5
    assert "6 engines in a row" in restarts.farewell("x")
    restarts.bear()
    restarts.death(0.0)
    assert restarts.rest() == 0.0
    restarts.death(1000.0)  # it had lived long
    assert restarts.num_barren == 0


TIMING = Timing(watchdog_seconds=10.0, watchdog_token_seconds=1.0, silence_seconds=2.0)


def test_silence_and_steps_without_end_are_charged() -> None:
    vigil = Liveness(TIMING, 0.0)
    vigil.ready(5.0)
    vigil.hear(5.0, None)
    assert vigil.charge(7.0, has_work=True) is None
    assert "no sign of life for 2.5 s" in str(vigil.charge(7.5, has_work=True))
    vigil.hear(20.0, Pulse(0, 15.0, 4))
    assert vigil.charge(19.0, has_work=True) is None  # 10 s, and one for each of 4 tokens
    assert "step 0 was not done after 15.0 s" in str(vigil.charge(20.0, has_work=True))
    assert vigil.charge(20.0, has_work=False) is None
    vigil.hear(40.0, Pulse(1, 1.0, 4))  # it was done
    assert vigil.charge(41.0, has_work=True) is None


def test_an_engine_is_fresh_until_half_of_the_silence_it_may_keep_is_over() -> None:
    vigil = Liveness(TIMING, 0.0)
    vigil.ready(0.0)
    vigil.hear(0.0, None)
    for tick in range(1, 5):
        vigil.look(tick * TICK_SECONDS)
        assert vigil.is_fresh(tick * TICK_SECONDS)
    vigil.look(5 * TICK_SECONDS)
    assert not vigil.is_fresh(5 * TICK_SECONDS)


def test_who_has_not_looked_for_long_does_not_call_the_engine_stale() -> None:
    """Its signs of life may lie there unread: nobody is turned away for our own sleep."""
    vigil = Liveness(TIMING, 0.0)
    vigil.ready(0.0)
    vigil.hear(0.0, None)
    vigil.look(TICK_SECONDS)
    assert vigil.is_fresh(60.0)
    vigil.look(60.0)
    assert vigil.is_fresh(60.0)
    for tick in range(1, 6):
        vigil.look(60.0 + tick * TICK_SECONDS)
    assert not vigil.is_fresh(60.0 + 5 * TICK_SECONDS)


def test_a_step_that_was_too_long_has_longer_in_the_next_engine() -> None:
    """Else a machine that is slow would have its engines killed for the same step for ever."""
    restarts = RestartPolicy(TIMING)
    assert restarts.patience() == 1.0
    restarts.death(0.0)
    vigil = Liveness(TIMING, 0.0, restarts.patience())
    vigil.ready(0.0)
    vigil.hear(28.0, Pulse(0, 28.0, 4))
    assert vigil.charge(28.0, has_work=True) is None  # twice 14 s
    vigil.hear(29.0, Pulse(0, 29.0, 4))
    assert "step 0 was not done" in str(vigil.charge(29.0, has_work=True))
    for _ in range(6):
        restarts.death(0.0)
    assert restarts.patience() == 8.0
    restarts.bear()
    assert restarts.patience() == 1.0


def test_an_hour_in_which_nobody_looked_is_nobody_s_fault() -> None:
    for is_ready in (True, False):
        vigil = Liveness(TIMING, 0.0)
        if is_ready:
            vigil.ready(TICK_SECONDS)
            vigil.hear(TICK_SECONDS, None)
        vigil.look(TICK_SECONDS)
        vigil.look(3600.0)
        assert vigil.charge(3600.0, has_work=True) is None
        assert vigil.age(3600.0) == pytest.approx(TICK_SECONDS if is_ready else 0.0)
