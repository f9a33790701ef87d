"""The panels of a measured server: times against the rate, or how the times of one run spread."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from octavo.bench.plot.axis import number
from octavo.bench.plot.panel import Line, Mark, Panel
from octavo.bench.served.answer import Answer
from octavo.bench.served.figures import TIMES, milliseconds

_RATE = "requests/s"
_STEPS = 200  # of the line of a spread
_SHOWN = (50, 90, 99)
_WHOLE = 105.0  # percent, with room for a dot


def sweep_panels(
    runs: Sequence[Mapping[str, Any]],
    goals: Mapping[str, float],
    enough: float,
    knee: float | None,
    fails_at: float | None,
) -> list[Panel]:
    """Return the times and the share of good answers at each rate, with the knee marked."""
    ordered = sorted(runs, key=lambda each: float(each["request_rate"]))
    label = [] if knee is None else [Mark("x", knee, f"knee: {knee:.3g} {_RATE}")]
    line = [each._replace(text="") for each in label]
    bad_from = None if fails_at is None else (knee or 0.0)
    panels: list[Panel] = []
    names = ["ttft", "tpot", *(each for each in goals if each not in ("ttft", "tpot"))]
    for name in names:
        lines = [
            Line(f"p{at}", _against_rate(ordered, f"p{at}_{name}_ms"), kind)
            for at, kind in ((50, "a"), (99, "b"))
        ]
        if not any(each.points for each in lines):
            continue
        goal = (
            [Mark("y", goals[name], f"goal: {goals[name]:g} ms", "goal")] if name in goals else []
        )
        marks = [*(line if panels else label), *goal]
        panels.append(Panel(TIMES[name], _RATE, "ms", lines, marks, bad_from=bad_from))
    shares = [(float(each["request_rate"]), 100.0 * each["goodput_share"]) for each in ordered]
    needed = Mark("y", 100.0 * enough, f"needed: {100 * enough:g} %", "goal", is_below=True)
    panels.append(
        Panel(
            "Requests whose answer met the goals",
            _RATE,
            "%",
            [Line("share", shares, "a")],
            [*line, needed],
            y_most=_WHOLE,
            bad_from=bad_from,
        )
    )
    return panels


def _against_rate(runs: Iterable[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    return [(float(each["request_rate"]), float(each[key])) for each in runs if key in each]


def run_panels(answers: Sequence[Answer]) -> list[Panel]:
    """Return how many of the answers took at most how long, for each time."""
    complete = [each for each in answers if not each.error]
    panels = []
    for name, title in TIMES.items():
        values = [each for each in milliseconds(name, complete) if math.isfinite(each)]
        if not values:
            continue
        percents = [100.0 * step / _STEPS for step in range(_STEPS + 1)]
        points = list(zip(np.percentile(values, percents).tolist(), percents, strict=True))
        shown = zip(np.percentile(values, _SHOWN).tolist(), _SHOWN, strict=True)
        dots = [
            Line(f"p{at}", [(x, float(at))], "b", label=f"p{at}: {number(x)} ms") for x, at in shown
        ]
        of = "gaps" if name == "itl" else "answers"
        lines = [Line(f"% of {of}", points, "a", has_dots=False), *dots]
        panels.append(Panel(title, "ms", f"% of {of}", lines, y_most=_WHOLE))
    return panels
