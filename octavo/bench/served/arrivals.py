"""The times at which requests are sent: by a rate, by one that grows, or by their own."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from octavo.bench.load.asked import Asked

LINEAR, EXPONENTIAL = "linear", "exponential"


@dataclass(frozen=True, slots=True)
class Ramp:
    """A rate that changes from the first request to the last, as vLLM's command has it."""

    strategy: str
    start: float
    end: float

    def rate(self, index: int, count: int) -> float:
        """Return the rate of one of so many requests."""
        share = index / max(count - 1, 1)
        if self.strategy == EXPONENTIAL:
            return float(self.start * (self.end / self.start) ** share)
        return self.start + (self.end - self.start) * share


@dataclass(frozen=True, slots=True)
class Pace:
    """The rate of requests, and how even it is."""

    rate: float = math.inf  # requests a second
    burstiness: float = 1.0  # 1 as by a Poisson process; less is in bursts, more is even
    ramp: Ramp | None = None  # instead of a rate
    is_self_timed: bool = False  # by the requests' own times, stretched if there is a rate


AT_ONCE = Pace()


def arrivals(asked: Sequence[Asked], pace: Pace, chance: random.Random) -> list[float]:
    """Return when each request is sent, in seconds from the beginning.

    The times between them follow a gamma distribution, scaled so that the last one comes when it
    should at this rate; those of a ramp are not scaled.
    """
    count = len(asked)
    if pace.is_self_timed:
        return _stretched([each.at or 0.0 for each in asked], pace.rate)
    if pace.ramp is None and math.isinf(pace.rate):
        return [0.0] * count
    rates = [pace.rate if pace.ramp is None else pace.ramp.rate(i, count) for i in range(count)]
    times = list(accumulate(_pause(rate, pace.burstiness, chance) for rate in rates))
    return times if pace.ramp is not None else _stretched(times, pace.rate)


def _pause(rate: float, burstiness: float, chance: random.Random) -> float:
    if math.isinf(burstiness):
        return 1.0 / rate
    return chance.gammavariate(burstiness, 1.0 / (rate * burstiness))


def _stretched(times: list[float], rate: float) -> list[float]:
    """Return the times so that they have this rate in the mean; inf leaves them as they are."""
    if math.isinf(rate) or not times or not times[-1]:
        return times
    stretch = len(times) / rate / times[-1]
    return [each * stretch for each in times]
