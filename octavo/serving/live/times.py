"""The times of the last seconds, read off histograms that count since the server's start."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from octavo.observe.exposition import Histogram
from octavo.serving.live.schema import LiveTimes

WINDOW = 20  # frames that the times are of


class RecentTimes:
    """The values that a histogram has counted during the last frames."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._readings = deque([histogram.reading()], maxlen=WINDOW + 1)

    def take(self) -> LiveTimes:
        """Return the times of the last frames, this one included."""
        self._readings.append(self._histogram.reading())
        (before, sum_before), (now, sum_now) = self._readings[0], self._readings[-1]
        counts = [after - earlier for earlier, after in zip(before, now, strict=True)]
        count = sum(counts)
        if not count:
            return LiveTimes(count=0, mean_ms=0.0, p50_ms=0.0, p95_ms=0.0)
        bounds = self._histogram.bounds
        return LiveTimes(
            count=count,
            mean_ms=_ms((sum_now - sum_before) / count),
            p50_ms=_ms(quantile(bounds, counts, 0.5)),
            p95_ms=_ms(quantile(bounds, counts, 0.95)),
        )


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float:
    """Return the value that a share of the counted ones does not exceed, as if evenly spread.

    The last count is of values beyond all bounds; for them the last bound is returned.
    """
    rank, below, lower = share * sum(counts), 0, 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if count and below + count >= rank:
            return lower + (bound - lower) * (rank - below) / count
        below, lower = below + count, bound
    return lower


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 2)
