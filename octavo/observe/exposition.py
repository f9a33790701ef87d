"""Counters, gauges and histograms, and their text in the formats of Prometheus and OpenMetrics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

Labels = tuple[tuple[str, str], ...]
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = b"application/openmetrics-text; version=1.0.0; charset=utf-8"
MAX_EXEMPLAR_CHARACTERS = 128  # of names and values together, by the format's definition
MAX_SERIES = 256  # of one metric; without a limit clients could create any number


class Exemplar(NamedTuple):
    """A request of which a histogram counts a value, and when it does, in seconds since 1970."""

    labels: Labels
    at: float


class Metric:
    """A name, a meaning, and one series for each set of label values."""

    kind: Literal["counter", "gauge", "histogram"]
    has_suffix = False  # whether the name of a sample ends in _total

    def __init__(self, name: str, meaning: str) -> None:
        self.name = name
        self.meaning = meaning

    def lines(self, name: str, base: Labels, *, exemplars: bool = False) -> Iterator[str]:
        """Yield the samples under `name`, each with the labels in `base`, and its exemplar."""
        raise NotImplementedError


class Counter(Metric):
    """A total that only grows."""

    kind = "counter"
    has_suffix = True

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

    def lines(self, name: str, base: Labels, *, exemplars: bool = False) -> Iterator[str]:
        for values, total in self._values.items():
            labels = (*base, *zip(self._labels, values, strict=True))
            yield f"{name}_total{_written(labels)} {_number(total)}"


class Gauge(Metric):
    """A value that is read when the metrics are."""

    kind: Literal["counter", "gauge", "histogram"] = "gauge"

    def __init__(
        self, name: str, meaning: str, read: Callable[[], float | Iterable[tuple[Labels, float]]]
    ) -> None:
        super().__init__(name, meaning)
        self._read = read

    def lines(self, name: str, base: Labels, *, exemplars: bool = False) -> Iterator[str]:
        value = self._read()
        if isinstance(value, int | float):
            value = [((), value)]
        for labels, number in value:
            yield f"{name}{_written((*base, *labels))} {_number(number)}"


class Maximum(Gauge):
    """The largest value so far, as llama-server exposes it: a counter without a suffix."""

    kind = "counter"


class Histogram(Metric):
    """The number of values below each of several bounds."""

    kind = "histogram"

    def __init__(self, name: str, meaning: str, bounds: Sequence[float]) -> None:
        super().__init__(name, meaning)
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._exemplars: dict[int, str] = {}  # the last one of each bucket

    def observe(self, value: float, times: int = 1, exemplar: Exemplar | None = None) -> None:
        """Count a value, `times` times; the exemplar names the request that it is of."""
        index = bisect_left(self._bounds, value)
        self._counts[index] += times
        self._sum += value * times
        if exemplar is not None and _fits(exemplar.labels):
            labels = _written(exemplar.labels)
            self._exemplars[index] = f" # {labels} {float(value)!r} {float(exemplar.at)!r}"

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

    def lines(self, name: str, base: Labels, *, exemplars: bool = False) -> Iterator[str]:
        total = 0
        shown = self._exemplars if exemplars else {}
        for index, count in enumerate(self._counts):
            total += count
            is_last = index == len(self._bounds)
            edge = "+Inf" if is_last else _number(float(self._bounds[index]), point=True)
            labels = _written((*base, ("le", edge)))
            yield f"{name}_bucket{labels} {total}.0{shown.get(index, '')}"
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

    def lines(self, name: str, base: Labels, *, exemplars: bool = False) -> Iterator[str]:
        for value, histogram in self._each.items():
            yield from histogram.lines(name, (*base, (self._label, value)), exemplars=exemplars)


Named = tuple[str, Metric, Labels]  # a metric, and its name and labels in a text


def expose(metrics: Iterable[Named], *, openmetrics: bool = False) -> bytes:
    """Return the text of all metrics, each name once with the series of all that have it.

    Of metrics with the same name and labels the first is shown. OpenMetrics has exemplars.
    """
    families: dict[str, dict[Labels, Metric]] = {}
    for name, metric, base in metrics:
        families.setdefault(name, {}).setdefault(base, metric)
    lines: list[str] = []
    for name, members in families.items():
        first = next(iter(members.values()))
        family = f"{name}_total" if first.has_suffix and not openmetrics else name
        has_none = first.kind == "counter" and not first.has_suffix  # which OpenMetrics forbids
        lines.append(f"# HELP {family} {first.meaning}")
        lines.append(f"# TYPE {family} {'unknown' if openmetrics and has_none else first.kind}")
        for base, metric in members.items():
            lines.extend(metric.lines(name, base, exemplars=openmetrics))
    if openmetrics:
        lines.append("# EOF")
    return ("\n".join(lines) + "\n").encode()


def wants_openmetrics(accept: str) -> bool:
    """Return whether an Accept header names OpenMetrics, and no plain text before it."""
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for part in accept.lower().split(","):
        kind, *parameters = (word.strip() for word in part.split(";"))
        if kind in weights:
            weights[kind] = max(weights[kind], _weight(parameters))
    asked, plain = weights.values()
    return asked > 0 and asked >= plain


def _weight(parameters: Sequence[str]) -> float:
    """Return the `q` of a media type's parameters: 1 if there is none, 0 if it is no number."""
    given = next((word[2:] for word in parameters if word.startswith("q=")), "1")
    try:
        return float(given)
    except ValueError:
        return 0.0


def _fits(labels: Labels) -> bool:
    return sum(len(name) + len(value) for name, value in labels) <= MAX_EXEMPLAR_CHARACTERS


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
