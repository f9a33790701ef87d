"""The golden traces are reproduced byte for byte."""

from __future__ import annotations

import pytest

from tests.sim.golden import (
    DIRECTORY,
    NUM_KIND_TRACES,
    NUM_PLAIN_TRACES,
    NUM_SHARED_TRACES,
    TOTALS,
    totals,
    trace_of,
)

SEEDS = sorted(int(path.stem) for path in DIRECTORY.glob("*.txt"))


def test_no_golden_trace_is_missing() -> None:
    assert len(SEEDS) == NUM_PLAIN_TRACES + NUM_KIND_TRACES + NUM_SHARED_TRACES


@pytest.mark.parametrize("seed", SEEDS)
def test_a_golden_trace_is_reproduced(seed: int) -> None:
    """A change that is meant to change behaviour runs python -m tests.sim.golden --write."""
    assert trace_of(seed) == (DIRECTORY / f"{seed}.txt").read_text()


@pytest.mark.slow
def test_the_totals_of_many_worlds_are_reproduced() -> None:
    """Less sharing or more preemption is no failure, but must not happen unnoticed."""
    assert totals() == TOTALS.read_text()
