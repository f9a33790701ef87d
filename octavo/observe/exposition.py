"""Counters, gauges and histograms, and their text in the format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

Labels = tuple[tuple[str, str], ...]
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
MAX_SERIES = 256  # of one metric; without a limit clients could create any number


class Metric:
    """A name, a meaning, and one series for each set of label values."""

    kind: Literal["counter", "gauge", "histogram"]

    def __init__(self, name: str, meaning: str) -> None:
        self.name = name
        self.meaning = meaning

    def lines(self, name: str, base: Labels) -> Iterator[str]:
        """Yield the samples under `name`, each with the labels in `base`."""
        raise NotImplementedError


class Counter(Metric):
    """A total that only grows."""

    kind = "counter"

    def __init__(self, name: str, meaning: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, meaning)
        self._labels = tuple(labels)
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, amount: float = 1.0, *values: str) -> None:
        """Add to the series of these label values, given in order."""
        if values in self._values or len(self._values) < MAX_SERIES:
            self._values[values] = self._values.get(values, 0.0) + amount

    def raise_to(self, total: float, *values: str) -> None:
        """Set a total that is counted elsewhere, unless it has become smaller."""
        self._values[values] = max(total, self._values.get(values, 0.0))

    def value(self, *values: str) -> float:
        """Return the total of the series."""
        return self._values.get(values, 0.0)

    def lines(self, name: str, base: Labels) -> Iterator[str]:
        for values, total in self._values.items():
            labels = (*base, *zip(self._labels, values, strict=True))
            yield f"{name}_total{_written(labels)} {_number(total)}"


class Gauge(Metric):
    """A value that is read when the metrics are."""

    kind = "gauge"

    def __init__(
        self, name: str, meaning: str, read: Callable[[], float | Iterable[tuple[Labels, float]]]
    ) -> None:
        super().__init__(name, meaning)
        self._read = read

    def lines(self, name: str, base: Labels) -> Iterator[str]:
        value = self._read()
        if isinstance(value, int | float):
            value = [((), value)]
        for labels, number in value:
            yield f"{name}{_written((*base, *labels))} {_number(number)}"


class Histogram(Metric):
    """The number of values below each of several bounds."""

    kind = "histogram"

    def __init__(self, name: str, meaning: str, bounds: Sequence[float]) -> None:
        super().__init__(name, meaning)
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, `times` times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def load(self, counts: Sequence[int], total: float) -> None:
        """Take counts that are kept elsewhere, one for each bound and one beyond them."""
        self._counts = list(counts)
        self._sum = total

    @property
    def count(self) -> int:
        """The number of values that were counted."""
        return sum(self._counts)

    @property
    def bounds(self) -> tuple[float, ...]:
        """The largest value that each count but the last has."""
        return self._bounds

    def reading(self) -> tuple[tuple[int, ...], float]:
        """Return the counts as they are now, and the sum of all values."""
        return tuple(self._counts), self._sum

    def lines(self, name: str, base: Labels) -> Iterator[str]:
        total = 0
        for bound, count in zip((*self._bounds, None), self._counts, strict=True):
            total += count
            edge = "+Inf" if bound is None else _number(float(bound), point=True)
            yield f"{name}_bucket{_written((*base, ('le', edge)))} {total}.0"
        yield f"{name}_sum{_written(base)} {_number(self._sum)}"
        yield f"{name}_count{_written(base)} {total}.0"


class HistogramOfEach(Metric):
    """Histograms with equal bounds, one for each value of a label."""

    kind = "histogram"

    def __init__(self, name: str, meaning: str, bounds: Sequence[float], label: str) -> None:
        super().__init__(name, meaning)
        self._bounds = bounds
        self._label = label
        self._each: dict[str, Histogram] = {}

    def load(self, value: str, counts: Sequence[int], total: float) -> None:
        """Take the counts of one value, as `Histogram.load` does."""
        if value not in self._each:
            self._each[value] = Histogram(self.name, self.meaning, self._bounds)
        self._each[value].load(counts, total)

    def lines(self, name: str, base: Labels) -> Iterator[str]:
        for value, histogram in self._each.items():
            yield from histogram.lines(name, (*base, (self._label, value)))


def expose(metrics: Iterable[tuple[str, Metric, Labels]]) -> bytes:
    """Return the text of all metrics, each under the name and with the labels given here."""
    lines: list[str] = []
    for name, metric, base in metrics:
        family = f"{name}_total" if metric.kind == "counter" else name
        lines.append(f"# HELP {family} {metric.meaning}")
        lines.append(f"# TYPE {family} {metric.kind}")
        lines.extend(metric.lines(name, base))
    return ("\n".join(lines) + "\n").encode()


def merged(texts: Sequence[bytes]) -> bytes:
    """Return one text of several, each metric once with the series of all.

    A series that several have is that of the first.
    """
    families: dict[str, tuple[list[str], dict[str, str]]] = {}
    for text in texts:
        heads: list[str] = []
        series: dict[str, str] = {}
        for line in text.decode().splitlines():
            if line.startswith("# HELP "):
                name = line.split(" ", 3)[2]
                heads, series = families.setdefault(name, ([line], {}))
            elif line.startswith("# TYPE "):
                if line not in heads:
                    heads.append(line)
            else:
                series.setdefault(line.rpartition(" ")[0], line)
    lines = [line for heads, series in families.values() for line in (*heads, *series.values())]
    return ("\n".join(lines) + "\n").encode()


def _written(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{pairs}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float, *, point: bool = False) -> str:
    """Format a value; with `point` always with a decimal point, as the reference client does."""
    return repr(float(value)) if point or value != int(value) else f"{value:.1f}"
