"""The golden traces are reproduced byte for byte."""

from __future__ import annotations

import pytest

from tests.sim.golden import DIRECTORY, NUM_TRACES, TOTALS, totals, trace_of

SEEDS = sorted(int(path.stem) for path in DIRECTORY.glob("*.txt"))


def test_there_are_as_many_as_there_should_be() -> None:
    """A trace that is lost is noticed."""
    assert len(SEEDS) == NUM_TRACES


@pytest.mark.parametrize("seed", SEEDS)
def test_a_golden_trace_is_reproduced(seed: int) -> None:
    """If this change is meant to change behaviour: python -m tests.sim.golden --write"""
    assert trace_of(seed) == (DIRECTORY / f"{seed}.txt").read_text()


@pytest.mark.slow
def test_many_worlds_come_to_the_same_sums() -> None:
    """Less sharing, more preemption, idle steps: no failure, but nothing to happen unseen."""
    assert totals() == TOTALS.read_text()
