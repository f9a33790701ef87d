"""When requests are sent: at a rate, in bursts, at a rate that grows, or at times of their own."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from octavo.bench.load.asked import Asked
from octavo.bench.served.arrivals import AT_ONCE, EXPONENTIAL, LINEAR, Pace, Ramp, arrivals

MANY = [Asked("x", 1)] * 400


def gaps(times: list[float]) -> list[float]:
    return [b - a for a, b in itertools.pairwise(times)]


@pytest.mark.parametrize("burstiness", [0.3, 1.0, 50.0, math.inf])
def test_requests_arrive_at_the_rate(burstiness: float) -> None:
    times = arrivals(MANY, Pace(4.0, burstiness), random.Random(1))
    assert times == sorted(times)
    assert times[-1] == pytest.approx(100.0)
    assert times == arrivals(MANY, Pace(4.0, burstiness), random.Random(1))


def test_burstiness_is_how_even_they_are() -> None:
    """The squared ratio of deviation to mean is 1 / burstiness, as of a gamma distribution."""
    for burstiness in (0.25, 1.0, 16.0):
        found = gaps(arrivals([Asked("x", 1)] * 20_000, Pace(4.0, burstiness), random.Random(1)))
        mean = sum(found) / len(found)
        spread = sum((each - mean) ** 2 for each in found) / len(found) / mean**2
        assert spread == pytest.approx(1 / burstiness, rel=0.1)
    even = gaps(arrivals(MANY, Pace(4.0, math.inf), random.Random(1)))
    assert (min(even), max(even)) == pytest.approx((0.25, 0.25))


def test_all_at_once() -> None:
    assert arrivals(MANY[:2], AT_ONCE, random.Random(1)) == [0.0, 0.0]


def test_a_rate_that_grows() -> None:
    for strategy, middle in ((LINEAR, 5.0), (EXPONENTIAL, 3.0)):
        ramp = Ramp(strategy, 1.0, 9.0)
        assert [ramp.rate(index, 3) for index in range(3)] == pytest.approx([1.0, middle, 9.0])
        even = gaps(arrivals(MANY, Pace(burstiness=math.inf, ramp=ramp), random.Random(1)))
        assert even == pytest.approx([1 / ramp.rate(index, 400) for index in range(1, 400)])
    assert Ramp(LINEAR, 2.0, 4.0).rate(0, 1) == 2.0


def test_times_of_their_own() -> None:
    asked = [Asked("x", 1, at) for at in (0.0, 1.0, 1.0, 8.0)]
    assert arrivals(asked, Pace(is_self_timed=True), random.Random(1)) == [0.0, 1.0, 1.0, 8.0]
    faster = Pace(2.0, is_self_timed=True)  # four requests in two seconds
    assert arrivals(asked, faster, random.Random(1)) == [0.0, 0.25, 0.25, 2.0]
    together = [Asked("x", 1, 0.0)] * 3
    assert arrivals(together, faster, random.Random(1)) == [0.0] * 3
