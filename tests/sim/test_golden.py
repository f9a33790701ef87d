"""The golden traces are reproduced byte for byte."""

from __future__ import annotations

import pytest

from tests.sim.golden import DIRECTORY, NUM_TRACES, trace_of

SEEDS = sorted(int(path.stem) for path in DIRECTORY.glob("*.txt"))


def test_there_are_as_many_as_there_should_be() -> None:
    """A trace that is lost is noticed."""
    assert len(SEEDS) == NUM_TRACES


@pytest.mark.parametrize("seed", SEEDS)
def test_a_golden_trace_is_reproduced(seed: int) -> None:
    """If this change is meant to change behaviour: python -m tests.sim.golden --write"""
    assert trace_of(seed) == (DIRECTORY / f"{seed}.txt").read_text()
