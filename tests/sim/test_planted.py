"""Every planted bug is caught: the simulator has no hole of that kind."""

from __future__ import annotations

import pytest

from tests.sim.planted import NUM_SEEDS, try_bug
from tests.sim.planted_bugs import BUGS, Bug


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(bug: Bug) -> None:
    """The simulator, run on a copy of the core with this bug in it, fails."""
    verdict = try_bug(bug)
    assert verdict.caught_by is not None, f"{bug.name} survived {NUM_SEEDS} worlds"


def test_there_are_enough_of_them() -> None:
    """Names are told apart, and there are at least thirty."""
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 30
