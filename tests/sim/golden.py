"""Golden traces: recorded traces of forty worlds, and the totals of many.

A change that is not meant to change behaviour must reproduce them byte for byte. A change that is
meant to records them again, `python -m tests.sim.golden --write`, and its commit says why.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from tests.sim.report import as_python
from tests.sim.simulation import Simulation
from tests.sim.world import FIRST_SHARED, NUM_PLAIN, draw_world

DIRECTORY = Path(__file__).parent / "golden"
# The first seeds whose traces are neither trivial nor too long to read a diff: of plain worlds, and
# of worlds with all kinds of KV groups, holds and transfers, and of worlds with several owners.
NUM_PLAIN_TRACES, NUM_KIND_TRACES, NUM_SHARED_TRACES = 20, 10, 10
LINES = range(60, 260)
TOTALS = Path(__file__).parent / "golden_totals.txt"
NUM_SUMMED = 200


def trace_of(seed: int) -> str:
    """Return a world's trace, with its configuration, without defaults, as the first line."""
    world = draw_world(seed)
    lines = Simulation(world, record=True).run().trace or []
    return "\n".join([as_python(world.config), *lines, ""])


def choose_seeds() -> list[int]:
    """Return the seeds whose traces are recorded."""
    seeds: list[int] = []
    for first, count in ((0, NUM_PLAIN_TRACES), (NUM_PLAIN, NUM_KIND_TRACES)):
        found = (seed for seed in itertools.count(first) if _is_fit(seed))
        seeds.extend(itertools.islice(found, count))
    shared = (seed for seed in itertools.count(FIRST_SHARED) if _is_shared(seed) and _is_fit(seed))
    seeds.extend(itertools.islice(shared, NUM_SHARED_TRACES))
    return seeds


def _is_fit(seed: int) -> bool:
    return trace_of(seed).count("\n") in LINES


def _is_shared(seed: int) -> bool:
    """Return whether sequences of a world yield to another owner."""
    return Simulation(draw_world(seed)).run().oracle.num_given > 0


def totals() -> str:
    """Return the totals of many worlds, which show changes that only cost or save work."""
    sums = dict.fromkeys(
        ("steps", "tokens", "prefill tokens", "cached", "preempted", "drafts", "accepted"), 0
    )
    ends: dict[str, int] = {}
    for seed in range(NUM_SUMMED):
        stats = Simulation(draw_world(seed)).run().engine.scheduler.stats
        values = (
            stats.num_steps,
            stats.num_tokens,
            stats.num_prefill_tokens,
            stats.num_cached_tokens,
            stats.num_preemptions,
            stats.num_drafts,
            stats.num_accepted_drafts,
        )
        for name, value in zip(sums, values, strict=True):
            sums[name] += value
        for reason, count in stats.num_finished.items():
            ends[reason] = ends.get(reason, 0) + count
    return "".join(f"{name}: {value}\n" for name, value in {**sums, **ends}.items())


def write() -> None:
    """Record all traces and the totals again."""
    DIRECTORY.mkdir(exist_ok=True)
    for old in DIRECTORY.glob("*.txt"):
        old.unlink()
    for seed in choose_seeds():
        (DIRECTORY / f"{seed}.txt").write_text(trace_of(seed))
    TOTALS.write_text(totals())


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.sim.golden --write")
    write()
