"""Finds the knee of a server: the highest rate of requests at which enough answers are in time."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

FACTOR = 2.0  # between rates, until one is too high
PRECISION = 1.1  # of the rates around the knee: the higher is at most so many times the lower
MOST_RUNS = 16


@dataclass(frozen=True, slots=True)
class Point:
    """A run at one rate, and whether it holds: enough of its answers were in time."""

    rate: float
    share: float  # of the requests, whose answers were complete and in time
    holds: bool
    num_requests: int
    figures: dict[str, Any]

    @property
    def is_burst(self) -> bool:
        """True if all requests were open at once, so that a higher rate is the same load."""
        return bool(self.figures["max_concurrent_requests"] >= self.num_requests)

    @property
    def is_alone(self) -> bool:
        """True if no two requests were open at once, so that a lower rate is the same load."""
        return bool(self.figures["max_concurrent_requests"] <= 1)


@dataclass(frozen=True, slots=True)
class Knee:
    """The highest rate that holds, and the lowest that does not; None if there is none."""

    holds_at: float | None
    fails_at: float | None
    why: str  # the search has ended


Try = Callable[[float], Awaitable[Point | None]]  # None: the run was interrupted


async def search(attempt: Try, start: float, points: list[Point]) -> Knee:
    """Try rates until the knee is known within PRECISION; the points are added to a list.

    From the first rate it goes up by FACTOR while the rate holds, or down while it does not. When
    one rate holds and a higher one does not, it halves the distance between them. It ends at
    PRECISION, after MOST_RUNS, or where a further rate would be the same load.
    """
    rate = start
    while len(points) < MOST_RUNS:
        point = await attempt(rate)
        if point is None:
            return knee_of(points, "it was interrupted")
        points.append(point)
        knee = knee_of(points, "")
        low, high = knee.holds_at, knee.fails_at
        if low is not None and high is not None:
            if high / low <= PRECISION:
                return knee_of(points, f"both rates are within {100 * (PRECISION - 1):.0f} %")
            rate = math.sqrt(low * high)
        elif point.is_burst if high is None else point.is_alone:
            open_ = "all requests were open at once" if high is None else "no two were open at once"
            return knee_of(points, f"{open_}, so that a further rate is the same load")
        else:
            rate = point.rate * FACTOR if high is None else point.rate / FACTOR
    return knee_of(points, f"it has tried {MOST_RUNS} rates")


async def each_of(attempt: Try, rates: Sequence[float], points: list[Point]) -> Knee:
    """Try these rates, the lowest first, up to the end or to an interruption."""
    for rate in sorted(rates):
        point = await attempt(rate)
        if point is None:
            return knee_of(points, "it was interrupted")
        points.append(point)
    return knee_of(points, "all rates were tried")


def knee_of(points: Sequence[Point], why: str) -> Knee:
    """Return the lowest rate that does not hold, and the highest below it that does."""
    failed = min((each.rate for each in points if not each.holds), default=None)
    below = [each.rate for each in points if each.holds and each.rate < (failed or math.inf)]
    return Knee(max(below, default=None), failed, why)
