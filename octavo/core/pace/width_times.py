"""The time of steps that only decode, as it was measured at each number of rows.

No line through it is good enough: where weights are read for few rows a further one costs next to
nothing, and where a step is bound by arithmetic as much as those before it.

Between two widths that were measured, the time is taken to lie on a line. Wider steps than any are
taken to go on as the last ones do: if they take longer, that is soon known. No step is faster than
one of fewer rows: a time that says so corrects those that were measured before it.

What a width costs more than the step without drafts fades while it is not measured, so that it is
tried again, and all begin anew with each trial. So trials take a small part of the time, whatever
they cost, and the one that comes first is the one that needs the least to pay. A width that was
measured few times is tried again soon, and believes a shorter time at once: the first steps of an
engine are slow, and a step that was fast has not done less work.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable

# A row of a step takes this part of the time of a step without rows, until it has been measured.
# docs/speculation.md has measurements.
ROW_COST = 0.25
NUM_FRESH = 16  # steps, after which what a time exceeds plain steps by begins to fade
NUM_OLD = 256  # steps, after which the next time counts more
FADING = 0.002  # in a step, as a part of that
NUM_FEW = 3  # measurements, before which fewer steps are enough, and more fades
FADING_OF_FEW = 0.06
WIDENING = 2  # times the rows of the widest step so far, which the next one may have
FEW_ROWS = 8  # are taken for cheap, before any step was so wide
_GAIN, _OLD_GAIN = 0.2, 0.5  # weight of the newest time where the one before is fresh, or old
_MOST = 2.0  # times what is known counts a time at most, and a part of it at least: stalls
_LONG_AGO = -(1 << 62)

Seconds = Callable[[int], float]  # of a step, by its rows


class WidthTimes:
    """The times of steps by their rows."""

    def __init__(self) -> None:
        # Of each width that was measured, in order.
        self._rows: list[int] = []
        self._seconds: list[float] = []
        self._measured_at: list[int] = []  # the step, by the count of those that were learned
        self._counts: list[int] = []  # of measurements
        self._num_learned = 0
        self._tried_at = 0  # the last step with drafts whose width had no fresh time

    def __bool__(self) -> bool:
        return bool(self._rows)

    def knows(self, rows: int) -> bool:
        """Return whether a step of so many rows was ever measured."""
        place = bisect_left(self._rows, rows)
        return place < len(self._rows) and self._rows[place] == rows

    def most_rows(self, rows: int) -> int:
        """Return how wide a step may be that has so many rows without drafts.

        What wider ones than any so far take is a guess, and one such step could cost as much as
        many others save.
        """
        widest = self._rows[-1] if self._rows else 0
        return WIDENING * max(widest, rows, FEW_ROWS)

    def seconds(self, rows: int) -> float:
        """Return the time of a step; before anything is measured, in steps without rows."""
        return self._known(rows)[0]

    def expected(self, plain_rows: int, plain: float) -> Seconds:
        """Return what gives the times of steps with drafts, which may be worth another trial.

        The step without drafts has `plain_rows`, and takes the time `plain`. What this returns is
        for one step: it is asked for each draft, and looks at each narrower width once.
        """
        all_rows, tried_at, now = self._rows, self._tried_at, self._num_learned
        first = bisect_right(all_rows, max(plain_rows, FEW_ROWS))
        most = [0.0]  # seconds of a row in any of the first so many widths from that one on

        def seconds_of(rows: int) -> float:
            place = bisect_left(all_rows, rows)
            if place < len(all_rows) and all_rows[place] == rows:
                last = max(self._measured_at[place], tried_at)
                if now - last <= _num_fresh(self._counts[place]):
                    return self._seconds[place]  # as nearly always
            seconds, has_faded = self._faded(self._known(rows), plain)
            if has_faded and place > first:
                # A row costs no less than those of narrower steps: a wider step is worth a trial
                # only where theirs would pay.
                for at in range(first + len(most) - 1, place):
                    known = self._seconds[at], self._measured_at[at], self._counts[at]
                    more = self._faded(known, plain)[0] - plain
                    most.append(max(most[-1], more / (all_rows[at] - plain_rows)))
                seconds = max(seconds, plain + most[place - first] * (rows - plain_rows))
            return seconds

        return seconds_of

    def _faded(self, known: tuple[float, int, int], plain: float) -> tuple[float, bool]:
        """Return the time of a step without what has faded, and whether anything has."""
        seconds, measured_at, count = known
        age = self._num_learned - max(measured_at, self._tried_at) - _num_fresh(count)
        if age <= 0:
            return seconds, False
        fading = FADING if count >= NUM_FEW else FADING_OF_FEW
        return plain + (seconds - plain) * max(0.0, 1.0 - fading * age), True

    def _known(self, rows: int) -> tuple[float, int, int]:
        """Return the time of a step, when it was measured, and how often."""
        all_rows, all_seconds = self._rows, self._seconds
        place = bisect_left(all_rows, rows)
        if place < len(all_rows) and all_rows[place] == rows:
            return all_seconds[place], self._measured_at[place], self._counts[place]
        if 0 < place < len(all_rows):
            before, behind = all_rows[place - 1 : place + 1]
            share = (rows - before) / (behind - before)
            seconds, more = all_seconds[place - 1 : place + 1]
            measured_at = max(self._measured_at[place - 1 : place + 1])
            return seconds + share * (more - seconds), measured_at, self._counts[place]
        if not all_rows:
            return 1.0 + ROW_COST * rows, _LONG_AGO, 0
        if place and len(all_rows) > 1:
            half = max(0, bisect_right(all_rows, all_rows[-1] // 2) - 1)
            row = (all_seconds[-1] - all_seconds[half]) / (all_rows[-1] - all_rows[half])
            return all_seconds[-1] + row * (rows - all_rows[-1]), _LONG_AGO, 0
        near = 0 if place == 0 else -1
        share = (1.0 + ROW_COST * rows) / (1.0 + ROW_COST * all_rows[near])
        return all_seconds[near] * share, _LONG_AGO, 0

    def learn(self, rows: int, seconds: float, *, has_drafts: bool, count: int = 1) -> None:
        """Add the time of a step, or the mean of several alike."""
        self._num_learned += count
        now = self._num_learned
        place = bisect_left(self._rows, rows)
        if place < len(self._rows) and self._rows[place] == rows:
            known = self._seconds[place]
        else:
            known = self._known(rows)[0] if self._rows else seconds
            self._rows.insert(place, rows)
            self._seconds.insert(place, known)
            self._measured_at.insert(place, _LONG_AGO)
            self._counts.insert(place, 0)
        age, num_before = now - self._measured_at[place], self._counts[place]
        self._counts[place] += count
        if has_drafts and age > _num_fresh(num_before):
            self._tried_at = now
        if num_before < NUM_FEW and seconds < known:
            known = seconds
        else:
            newest = min(max(seconds, known / _MOST), known * _MOST)
            known += (newest - known) * (_OLD_GAIN if age > NUM_OLD else _GAIN)
        all_seconds = self._seconds
        all_seconds[place] = known
        self._measured_at[place] = now
        for other in range(place - 1, -1, -1):
            if all_seconds[other] <= known:
                break
            all_seconds[other] = known
        for other in range(place + 1, len(all_seconds)):
            if all_seconds[other] >= known:
                break
            all_seconds[other] = known


def _num_fresh(count: int) -> int:
    """Return for how many steps a width's time is believed, which was measured so many times."""
    return NUM_FRESH if count >= NUM_FEW else NUM_FEW * count
