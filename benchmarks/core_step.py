"""Measure the cost of the core's steps, and compare it with targets.

    python benchmarks/core_step.py            a table
    python benchmarks/core_step.py --json     one JSON object
    python benchmarks/core_step.py --quick    half a minute, rougher

docs/performance.md explains the figures.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # so that the program can be run by its path

from benchmarks.core.cases import CASES, Effort  # noqa: E402
from benchmarks.core.figures import Figure  # noqa: E402
from benchmarks.core.world import watching_the_collector  # noqa: E402
from octavo.observe.machine import processor  # noqa: E402


def arguments() -> argparse.Namespace:
    """Parse the command line of the program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object, no table")
    parser.add_argument("--quick", action="store_true", help="few steps, two repeats")
    parser.add_argument("--repeats", type=int, help="fresh starts of every case (default 5)")
    parser.add_argument(
        "--case",
        action="append",
        choices=[case.__name__ for case in CASES],
        help="measure this case alone; may be given several times",
    )
    parsed = parser.parse_args()
    if parsed.repeats is not None and parsed.repeats < 1:
        parser.error(f"--repeats {parsed.repeats} must be at least 1")
    return parsed


def machine() -> dict[str, object]:
    """Return the properties of the machine that the figures depend on."""
    return {
        "cpu": processor()[0] or platform.processor() or platform.machine(),
        "num_cpus": os.cpu_count(),
        "load_average": list(os.getloadavg()),
        "system": f"{platform.system()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "gc_threshold": list(gc.get_threshold()),
    }


def measure(effort: Effort, chosen: list[str] | None, quiet: bool) -> list[Figure]:
    """Return the figures of all chosen cases; print each at once unless `quiet`."""
    figures: list[Figure] = []
    with watching_the_collector():
        for case in CASES:
            if chosen and case.__name__ not in chosen:
                continue
            gc.collect()  # collect the last case's worlds before this one is timed
            for each in case(effort):
                figures.append(each)
                if not quiet:
                    print(row(each), flush=True)
    return figures


HEADER = (
    f"{'':50} {'median':>9} {'p10':>8} {'p90':>8} {'max':>8}    "
    f"{'schedule':>8} {'apply':>7} {'wall':>7}  gc: full, young"
)


def row(each: Figure) -> str:
    """Return one figure as a line of the table."""
    text = f"{each.name:50} {number(each.median)}{each.unit:>3}"
    text += f"{number(each.p10)}{number(each.p90)}{number(each.max)}   "
    parts = [
        number(each.parts[part]) for part in ("schedule", "apply", "wall") if part in each.parts
    ]
    text += f"{''.join(parts):26}"
    if each.collector:
        text += (
            f"{each.collector['num_full']:3.0f} × ≤{each.collector['longest_full_ms']:5.1f} ms,"
            f" {each.collector['young_share']:4.1%}"
        )
    return f"{text}  {each.comparison}".rstrip()


def number(value: float) -> str:
    """Return a number with three or four significant digits."""
    digits = 3 if value < 1 else 2 if value < 100 else 0
    return f"{value:8.{digits}f}"


def main() -> None:
    options = arguments()
    effort = Effort(repeats=2, steps=50) if options.quick else Effort(repeats=5, steps=300)
    if options.repeats is not None:
        effort = Effort(options.repeats, effort.steps)
    about = machine()
    if not options.json:
        print(*(f"{name}: {value}" for name, value in about.items()), sep="\n")
        print(HEADER)
    figures = measure(effort, options.case, quiet=options.json)
    missed = [each.name for each in figures if each.comparison.startswith("MISSED")]
    if options.json:
        rows = [each.as_json() for each in figures]
        report = {
            "machine": about,
            "repeats": effort.repeats,
            "steps": effort.steps,
            "figures": rows,
            "missed": missed,
        }
        print(json.dumps(report, indent=1))
    elif missed:
        print("missed:", *missed, sep="\n  ")


if __name__ == "__main__":
    main()
