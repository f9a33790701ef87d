"""The time of a step is what was measured at its number of rows, or near it."""

from __future__ import annotations

import pytest

from octavo.core.pace import width_times
from octavo.core.pace.width_times import (
    FEW_ROWS,
    NUM_FRESH,
    NUM_OLD,
    ROW_COST,
    WidthTimes,
    _num_fresh,
)


def measured(**seconds_by_rows: float) -> WidthTimes:
    """Return times of steps that were measured often: `r4=2.0` for one of four rows."""
    times = WidthTimes()
    for _ in range(40):
        for name, seconds in seconds_by_rows.items():
            times.learn(int(name[1:]), seconds, has_drafts=False)
    return times


def test_before_anything_is_measured_a_row_costs_a_part_of_a_step() -> None:
    times = WidthTimes()
    assert not times
    assert not times.knows(1)
    assert [times.seconds(rows) for rows in (0, 1, 4)] == [1.0, 1.0 + ROW_COST, 1.0 + 4 * ROW_COST]


def test_of_one_width_the_others_are_as_if_a_row_cost_that_part() -> None:
    times = measured(r4=2.0)
    assert times
    assert times.knows(4)
    assert times.seconds(4) == 2.0
    assert times.seconds(0) == pytest.approx(1.0)
    assert times.seconds(8) == pytest.approx(3.0)


def test_between_two_widths_the_time_is_on_a_line_and_beyond_them_it_goes_on() -> None:
    times = measured(r1=1.0, r4=1.3, r8=1.5, r16=3.1)
    assert times.seconds(6) == pytest.approx(1.4, abs=0.001)
    assert times.seconds(20) == pytest.approx(3.9, abs=0.001)  # as from eight rows to sixteen
    assert measured(r8=1.0, r10=1.2).seconds(12) == pytest.approx(1.4, abs=0.001)


def test_a_stall_counts_twice_what_is_known() -> None:
    times = measured(r4=1.0)
    times.learn(4, 100.0, has_drafts=False)
    assert times.seconds(4) == pytest.approx(1.2)
    times = measured(r4=1.0)
    times.learn(4, 0.001, has_drafts=False)
    assert times.seconds(4) == pytest.approx(0.9)


def test_a_time_that_is_old_counts_less_than_the_next() -> None:
    times = measured(r4=1.0, r8=1.1)
    for _ in range(NUM_OLD + 1):
        times.learn(4, 1.0, has_drafts=False)
    times.learn(8, 2.1, has_drafts=True)
    assert times.seconds(8) == pytest.approx(1.6, abs=0.001)


def test_no_step_is_faster_than_one_of_fewer_rows() -> None:
    times = measured(r2=1.0, r4=2.0, r8=4.0, r16=4.2)
    for _ in range(40):
        times.learn(8, 1.5, has_drafts=True)
    found = [times.seconds(rows) for rows in (2, 4, 8, 16)]
    assert found == pytest.approx([1.0, 1.5, 1.5, 4.2], abs=0.01)
    for _ in range(40):
        times.learn(4, 4.4, has_drafts=True)
    found = [times.seconds(rows) for rows in (2, 4, 8, 16)]
    assert found == pytest.approx([1.0, 4.4, 4.4, 4.4], abs=0.01)


def test_what_was_dear_is_tried_again_and_then_not_for_a_while() -> None:
    times = measured(r4=1.0, r6=2.0, r8=3.0)

    def expected() -> list[float]:
        return [*map(times.expected(4, 1.0), (6, 8))]

    assert expected() == pytest.approx([2.0, 3.0], abs=0.001)
    for _ in range(NUM_FRESH + 100):
        times.learn(4, 1.0, has_drafts=False)
    assert expected() == pytest.approx([1.8, 2.6], abs=0.01)
    times.learn(6, 2.0, has_drafts=True)
    assert expected() == pytest.approx([2.0, 3.0], abs=0.001)
    for _ in range(NUM_FRESH + 1000):
        times.learn(4, 1.0, has_drafts=False)
    assert expected() == [1.0, 1.0]


def test_a_wide_step_is_tried_only_where_the_rows_of_narrower_ones_would_pay() -> None:
    times = measured(r16=1.0, r24=1.5)
    times.learn(64, 4.0, has_drafts=True)
    for _ in range(20):  # what was measured once fades soon
        times.learn(16, 1.0, has_drafts=False)
    assert times.expected(16, 1.0)(24) == pytest.approx(1.5, abs=0.01)
    assert times.expected(16, 1.0)(64) == pytest.approx(4.0, abs=0.05)
    for _ in range(NUM_FRESH + 400):
        times.learn(16, 1.0, has_drafts=False)
    assert times.expected(16, 1.0)(64) < 2.0


def test_a_step_is_at_most_twice_as_wide_as_any_so_far() -> None:
    times = WidthTimes()
    assert times.most_rows(1) == 2 * FEW_ROWS
    times.learn(20, 1.0, has_drafts=True)
    assert times.most_rows(1) == 40
    assert times.most_rows(32) == 64


def test_each_narrower_width_is_looked_at_once_for_all_drafts_of_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Widths are old where drafts do not pay, so that each draft looks at all of them."""
    times = WidthTimes()
    for rows in range(1, 501):
        times.learn(rows, 1.0 + rows / (100 + rows % 7), has_drafts=rows > 16)
    for _ in range(400):
        times.learn(16, 1.1, has_drafts=False)
    asked = [*range(17, 600, 9), 40, 18, 500]
    alone = [times.expected(16, 1.1)(rows) for rows in asked]
    num_looked = 0

    def counting(count: int) -> int:
        nonlocal num_looked
        num_looked += 1
        return _num_fresh(count)

    monkeypatch.setattr(width_times, "_num_fresh", counting)
    assert [*map(times.expected(16, 1.1), asked)] == alone
    assert num_looked <= 500 + 2 * len(asked)
