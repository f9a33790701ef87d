"""Golden traces: twenty worlds, tick by tick, as they ran when somebody last looked.

A change that is not meant to change behaviour must leave them as they are, to the byte. One that
is meant to writes them anew, `python -m tests.sim.golden --write`, and says why in its commit.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.sim.simulation import Simulation
from tests.sim.world import draw_world

DIRECTORY = Path(__file__).parent / "golden"
# The first twenty seeds whose worlds are neither trivial nor long, so that a diff can be read.
NUM_TRACES = 20
LINES = range(60, 260)


def trace_of(seed: int) -> str:
    """One world's trace, with its configuration on top."""
    world = draw_world(seed)
    lines = Simulation(world, record=True).run().trace or []
    return "\n".join([str(world.config), *lines, ""])


def choose_seeds() -> list[int]:
    """The seeds to keep traces of."""
    seeds: list[int] = []
    seed = 0
    while len(seeds) < NUM_TRACES:
        if trace_of(seed).count("\n") in LINES:
            seeds.append(seed)
        seed += 1
    return seeds


def write() -> None:
    """Write all traces anew."""
    DIRECTORY.mkdir(exist_ok=True)
    for old in DIRECTORY.glob("*.txt"):
        old.unlink()
    for seed in choose_seeds():
        (DIRECTORY / f"{seed}.txt").write_text(trace_of(seed))


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.sim.golden --write")
    write()
