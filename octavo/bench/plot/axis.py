"""An axis of a picture: where values lie on it, and which of them have a number beside them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_WIDE = 20.0  # times from the least to the most, from which an axis is logarithmic
_MOST_TICKS = 7
_ROOM = 0.05  # beside the least and the most, as a share of what is between them
_STEPS = (1, 2, 5)


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values over a range of pixels, linear or logarithmic."""

    least: float
    most: float
    first: float  # pixel of the least
    last: float  # pixel of the most
    is_log: bool

    def at(self, value: float) -> float:
        """Return the pixel of a value; values beyond the range are at its ends."""
        value = min(max(value, self.least), self.most)
        if self.is_log:
            share = math.log(value / self.least) / math.log(self.most / self.least)
        else:
            share = (value - self.least) / (self.most - self.least)
        return self.first + share * (self.last - self.first)

    def ticks(self) -> list[float]:
        """Return the round values within the range."""
        found = self._log_ticks() if self.is_log else self._linear_ticks()
        return [each for each in found if self.least * 0.999999 <= each <= self.most * 1.000001]

    def _linear_ticks(self) -> list[float]:
        step = next_step((self.most - self.least) / _MOST_TICKS)
        first = math.ceil(self.least / step)
        return [number * step for number in range(first, math.floor(self.most / step + 1e-9) + 1)]

    def _log_ticks(self) -> list[float]:
        low, high = math.floor(math.log10(self.least)), math.ceil(math.log10(self.most))
        steps = _STEPS if high - low <= 3 else (1,)
        return [step * 10.0**power for power in range(low, high + 1) for step in steps]


def axis_of(values: Iterable[float], first: float, last: float, *, from_zero: bool) -> Axis:
    """Return an axis that has all of these values, which are not negative."""
    finite = [each for each in values if math.isfinite(each)]
    positive = [each for each in finite if each > 0]
    if not positive:
        return Axis(0.0, 1.0, first, last, is_log=False)
    least, most = min(positive), max(positive)
    if most / least >= _WIDE and min(finite) > 0:
        room = (most / least) ** _ROOM
        return Axis(least / room, most * room, first, last, is_log=True)
    low = 0.0 if from_zero or min(finite) < least else least
    room = (most - low or most) * _ROOM
    return Axis(max(low - room, 0.0), most + room, first, last, is_log=False)


def next_step(least: float) -> float:
    """Return the next of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(
        (each * power for each in (*_STEPS, 10) if each * power >= least * 0.999999), 10 * power
    )


def number(value: float) -> str:
    """Write a number with as many digits as a picture has use for."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{float(f'{value:.3g}'):g}"
