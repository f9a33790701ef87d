"""The search for the knee, on servers whose answers are computed."""

from __future__ import annotations

import asyncio

import pytest

from octavo.bench.served.sweep import MOST_RUNS, PRECISION, Knee, Point, Try, each_of, search


def server(capacity: float, open_at_once: int = 5) -> Try:
    """Return an attempt whose rate holds up to a capacity."""

    async def attempt(rate: float) -> Point | None:
        holds = rate <= capacity
        return Point(rate, float(holds), holds, 10, {"max_concurrent_requests": open_at_once})

    return attempt


def searched(attempt: Try, start: float = 1.0) -> tuple[Knee, list[float]]:
    points: list[Point] = []
    knee = asyncio.run(search(attempt, start, points))
    return knee, [each.rate for each in points]


@pytest.mark.parametrize("capacity", [0.07, 0.9, 1.0, 7.7, 300.0])
def test_the_knee_is_found_within_the_precision(capacity: float) -> None:
    knee, rates = searched(server(capacity))
    assert knee.holds_at is not None
    assert knee.fails_at is not None
    assert knee.holds_at <= capacity < knee.fails_at <= knee.holds_at * PRECISION
    assert len(rates) == len(set(rates)) <= MOST_RUNS


def test_rates_are_doubled_and_then_halved_between() -> None:
    _, rates = searched(server(5.0))
    assert rates[:4] == [1.0, 2.0, 4.0, 8.0]
    assert rates[4] == pytest.approx(32**0.5)


def test_it_ends_where_a_further_rate_would_be_the_same_load() -> None:
    knee, rates = searched(server(1e9, open_at_once=10))
    assert (knee.holds_at, knee.fails_at, rates) == (1.0, None, [1.0])
    knee, rates = searched(server(0.0, open_at_once=1))
    assert (knee.holds_at, knee.fails_at, rates) == (None, 1.0, [1.0])


@pytest.mark.parametrize("capacity", [0.0, 1e99])
def test_it_ends_after_so_many_runs(capacity: float) -> None:
    knee, rates = searched(server(capacity))
    assert len(rates) == MOST_RUNS
    assert (knee.holds_at is None) == (capacity == 0.0)


def test_an_interrupted_search_has_what_it_knows() -> None:
    seen: list[float] = []

    async def attempt(rate: float) -> Point | None:
        seen.append(rate)
        return None if rate > 3 else await server(99.0)(rate)

    knee, rates = searched(attempt)
    assert (knee.holds_at, knee.fails_at) == (2.0, None)
    assert (rates, seen) == ([1.0, 2.0], [1.0, 2.0, 4.0])


def test_rates_that_are_given() -> None:
    points: list[Point] = []
    knee = asyncio.run(each_of(server(5.0), [8.0, 2.0, 4.0], points))
    assert (knee.holds_at, knee.fails_at) == (4.0, 8.0)
    assert [each.rate for each in points] == [2.0, 4.0, 8.0]


def test_a_rate_above_one_that_fails_is_not_the_knee() -> None:
    """A server may be lucky once: 4 holds, but 2 does not."""

    async def attempt(rate: float) -> Point | None:
        holds = rate != 2.0
        return Point(rate, float(holds), holds, 10, {"max_concurrent_requests": 5})

    points: list[Point] = []
    knee = asyncio.run(each_of(attempt, [1.0, 2.0, 4.0], points))
    assert (knee.holds_at, knee.fails_at) == (1.0, 2.0)
