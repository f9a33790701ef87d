"""The statistics of requests, steps and waiting."""

from octavo.core import stats
from octavo.core.stats import (
    MAX_CHUNKS,
    NUM_RECENT_STEPS,
    EngineStats,
    PrefillChunk,
    RequestStats,
    StepStats,
    WaitClock,
)


def test_a_timeline_beyond_its_bound_extends_its_last_chunk() -> None:
    timeline = RequestStats(0.0, 10, 0.0)
    for index in range(MAX_CHUNKS + 2):
        timeline.add_chunk(PrefillChunk(index, index + 1, float(index), index + 0.5))
    assert len(timeline.chunks) == MAX_CHUNKS
    assert timeline.chunks[-2] == (MAX_CHUNKS - 2, MAX_CHUNKS - 1, MAX_CHUNKS - 2, MAX_CHUNKS - 1.5)
    assert timeline.chunks[-1] == (MAX_CHUNKS - 1, MAX_CHUNKS + 2, MAX_CHUNKS - 1, MAX_CHUNKS + 1.5)


def test_time_counts_for_the_present_reason() -> None:
    clock = WaitClock()
    clock.advance(10.0)
    assert sum(clock.read()) == 0, "time begins with the first call"
    clock.advance(11.0)
    clock.reason = stats.BLOCKS
    clock.advance(14.0)
    assert (clock.seconds[stats.TURN], clock.seconds[stats.BLOCKS]) == (1.0, 3.0)


def test_a_clock_that_is_set_back_subtracts_nothing() -> None:
    clock = WaitClock()
    for now in (10.0, 4.0, 6.0):
        clock.advance(now)
    assert sum(clock.read()) == 2.0


def test_a_request_gets_the_seconds_of_each_reason_while_it_waits() -> None:
    clock, into = WaitClock(), {stats.BLOCKS: 1.0}
    clock.advance(0.0)
    clock.advance(5.0)
    reading = clock.read()
    clock.reason = stats.BLOCKS
    clock.advance(7.0)
    clock.reason = stats.SLOTS
    clock.advance(10.0)
    clock.add_since(reading, into)
    assert into == {stats.BLOCKS: 3.0, stats.SLOTS: 3.0}


def step(number: int) -> StepStats:
    """Return a step with 5 tokens, 3 of them prefill."""
    return StepStats(number, 0.0, 1, 5, 3, 1, 0, 1, 0, 63, None)


def test_totals_add_up_and_only_recent_steps_are_kept() -> None:
    totals = EngineStats()
    for number in range(NUM_RECENT_STEPS + 10):
        totals.add_step(step(number))
    assert totals.num_steps == NUM_RECENT_STEPS + 10
    assert (totals.num_tokens, totals.num_prefill_tokens) == (
        5 * totals.num_steps,
        3 * totals.num_steps,
    )
    assert [each.step for each in totals.recent] == [*range(10, NUM_RECENT_STEPS + 10)]


def test_steps_are_counted_by_the_power_of_two_that_bounds_their_tokens() -> None:
    totals = EngineStats()
    for num_tokens in (0, 1, 2, 3, 4, 5, 64, 65):
        totals.add_step(step(0)._replace(num_tokens=num_tokens))
    assert totals.steps_by_size == [1, 1, 2, 1, 0, 0, 1, 1]


def test_a_step_lasts_from_the_end_of_the_one_before_it() -> None:
    totals = EngineStats()
    for planned_at, now in ((1.0, 1.5), (1.25, 2.0), (5.0, 4.0)):
        totals.end_step(planned_at, now)
    assert list(totals.recent_seconds) == [0.5, 0.5, 0.0]


def test_steps_that_ended_are_paired_with_their_seconds() -> None:
    """Steps in flight have none yet; of many steps, the first and the last are returned."""
    totals = EngineStats()
    for number in range(NUM_RECENT_STEPS + 10):
        totals.add_step(step(number))
        if number:  # there is always one in flight
            totals.end_step(number - 1.0, number - 0.5)
    num_ended = NUM_RECENT_STEPS + 9
    assert totals.num_ended == num_ended
    last = [each.step for each, _ in totals.ended_after(num_ended - 3, 8)]
    assert last == [num_ended - 3, num_ended - 2, num_ended - 1]
    many = [each.step for each, _ in totals.ended_after(num_ended - 30, 2)]
    assert many == [num_ended - 30, num_ended - 29, num_ended - 2, num_ended - 1]
    assert [each.step for each, _ in totals.ended_after(0, 1)] == [10, num_ended - 1]
    assert totals.ended_after(num_ended, 8) == []


def test_predicted_steps_are_summed_apart() -> None:
    totals = EngineStats()
    totals.end_step(0.0, 1.0)
    totals.end_step(1.0, 3.0, 1.5)
    assert (totals.num_paced, totals.paced_predicted_seconds, totals.paced_seconds) == (1, 1.5, 2.0)


def test_finished_requests_are_counted_by_reason() -> None:
    totals = EngineStats()
    for reason in ("stop", "length", "stop"):
        totals.add_finish(reason)
    assert totals.num_finished == {"stop": 2, "length": 1}
