"""Counters, gauges and histograms, and their text as Prometheus reads it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

Labels = tuple[tuple[str, str], ...]
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
MAX_SERIES = 256  # of one metric; more would be a client's doing


class Metric:
    """A name, a meaning, and one series for each set of label values."""

    kind: Literal["counter", "gauge", "histogram"]

    def __init__(self, name: str, meaning: str) -> None:
        self.name = name
        self.meaning = meaning

    def lines(self, name: str, base: Labels) -> Iterator[str]:
        """The samples under `name`, each with the labels in `base`."""
        raise NotImplementedError


class Counter(Metric):
    """A total that only grows."""

    kind = "counter"

    def __init__(self, name: str, meaning: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, meaning)
        self._labels = tuple(labels)
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, amount: float = 1.0, *values: str) -> None:
        """Count; `values` are those of the labels, in order."""
        if values in self._values or len(self._values) < MAX_SERIES:
            self._values[values] = self._values.get(values, 0.0) + amount

    def raise_to(self, total: float, *values: str) -> None:
        """Follow a total that is counted elsewhere; one that begins again is added on."""
        self._values[values] = max(total, self._values.get(values, 0.0))

    def value(self, *values: str) -> float:
        """The total so far."""
        return self._values.get(values, 0.0)

    def lines(self, name: str, base: Labels) -> Iterator[str]:
        for values, total in self._values.items():
            labels = (*base, *zip(self._labels, values, strict=True))
            yield f"{name}_total{_written(labels)} {_number(total)}"


class Gauge(Metric):
    """A value that is asked for when it is told."""

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
    """How often values fell below each of some bounds."""

    kind = "histogram"

    def __init__(self, name: str, meaning: str, bounds: Sequence[float]) -> None:
        super().__init__(name, meaning)
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    @property
    def count(self) -> int:
        """Values so far."""
        return sum(self._counts)

    def lines(self, name: str, base: Labels) -> Iterator[str]:
        total = 0
        for bound, count in zip((*self._bounds, None), self._counts, strict=True):
            total += count
            edge = "+Inf" if bound is None else _number(float(bound), point=True)
            yield f"{name}_bucket{_written((*base, ('le', edge)))} {total}.0"
        yield f"{name}_sum{_written(base)} {_number(self._sum)}"
        yield f"{name}_count{_written(base)} {total}.0"


def expose(metrics: Iterable[tuple[str, Metric]], base: Labels) -> bytes:
    """All of them, each under the name it is given here."""
    lines: list[str] = []
    for name, metric in metrics:
        family = f"{name}_total" if metric.kind == "counter" else name
        lines.append(f"# HELP {family} {metric.meaning}")
        lines.append(f"# TYPE {family} {metric.kind}")
        lines.extend(metric.lines(name, base))
    return ("\n".join(lines) + "\n").encode()


def _written(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{pairs}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float, *, point: bool = False) -> str:
    """A sample's value; a bucket's edge always with a point, as the reference client has it."""
    return repr(float(value)) if point or value != int(value) else f"{value:.1f}"
