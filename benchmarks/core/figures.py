"""The figures of a measurement: a median with its spread, and its target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median, quantiles

from benchmarks.core.world import Sample

NS_PER_MS = 1e6

# The core's targets. A figure with one of these names is printed with "met" or "MISSED".
TARGETS = {
    "1,000 running, 10,000 waiting": 2.0,  # ms
    "256 running": 0.5,  # ms
    # A step's cost must not depend on the number waiting: the median with 50,000 divided by that
    # with 1,000, with a margin for the noise of a shared machine.
    "50,000 waiting by 1,000: for a slot": 1.10,
    "50,000 waiting by 1,000: head lacks blocks": 1.10,
    "50,000 waiting by 1,000: heads lack an adapter": 1.10,
    "match 32k cached tokens": 5.0,  # ms, hashing included
    "memory of a waiting 1k-token request": 20.0,  # kB
}


@dataclass(frozen=True)
class Figure:
    """One row of the report."""

    name: str
    unit: str
    median: float
    p10: float
    p90: float
    max: float
    num_samples: int
    repeat_medians: list[float]  # one for each repeat
    parts: dict[str, float] = field(default_factory=dict)  # medians of its parts
    collector: dict[str, float] = field(default_factory=dict)

    @property
    def target(self) -> float | None:
        """The upper bound of the median, if there is one."""
        return TARGETS.get(self.name)

    @property
    def comparison(self) -> str:
        """The words met or MISSED with the ratio to the target; empty without a target."""
        if self.target is None:
            return ""
        word = "met" if self.median <= self.target else "MISSED"
        return f"{word} ({self.median / self.target:.2f} of {self.target:g} {self.unit})".rstrip()

    def as_json(self) -> dict[str, object]:
        """Return the figure as plain values."""
        row: dict[str, object] = asdict(self)
        if self.target is not None:
            row["target"] = self.target
            row["ratio_to_target"] = self.median / self.target
            row["met"] = self.median <= self.target
        return row


def figure(
    name: str,
    unit: str,
    repeats: Sequence[Sequence[float]],
    parts: Mapping[str, Iterable[float]] | None = None,
    collector: dict[str, float] | None = None,
) -> Figure:
    """Return the figure of the values of all repeats."""
    ordered = sorted(value for values in repeats for value in values)
    p10 = p90 = ordered[0]
    if len(ordered) > 1:
        tenths = quantiles(ordered, n=10, method="inclusive")
        p10, p90 = tenths[0], tenths[-1]
    medians = {part: median(each) for part, each in (parts or {}).items()}
    return Figure(
        name,
        unit,
        median(ordered),
        p10,
        p90,
        ordered[-1],
        len(ordered),
        [median(values) for values in repeats],
        medians,
        collector or {},
    )


def step_figure(name: str, repeats: Sequence[Sequence[Sample]]) -> Figure:
    """Return the figure of steps in milliseconds, with the garbage collector's share."""
    samples = [sample for repeat in repeats for sample in repeat]
    full = [sample.full_gc_ns / NS_PER_MS for sample in samples if sample.full_gc_ns]
    without = [sample.total_ns for sample in samples if not sample.full_gc_ns]
    total_ns = sum(sample.total_ns for sample in samples)
    return figure(
        name,
        "ms",
        [[sample.total_ns / NS_PER_MS for sample in repeat] for repeat in repeats],
        {
            "schedule": [sample.schedule_ns / NS_PER_MS for sample in samples],
            "apply": [sample.apply_ns / NS_PER_MS for sample in samples],
            "wall": [sample.wall_ns / NS_PER_MS for sample in samples],
        },
        {
            "young_share": sum(sample.young_gc_ns for sample in samples) / total_ns,
            "num_full": len(full),
            "longest_full_ms": max(full, default=0.0),
            "max_without_full_ms": max(without, default=0) / NS_PER_MS,
        },
    )
