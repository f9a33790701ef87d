"""Every planted bug is caught: the simulator has no gap of that kind."""

from __future__ import annotations

import pytest

from tests.sim.bugs import BUGS, Bug
from tests.sim.planted import NUM_SEEDS, ROOT, try_bug


@pytest.mark.slow
@pytest.mark.sample(48)  # `make planted` tries all
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(bug: Bug) -> None:
    """The simulator fails on a copy of the core with this bug."""
    finding = try_bug(bug)
    assert finding.caught_by is not None, f"{bug.name} was not caught in {NUM_SEEDS} worlds"


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_has_its_place(bug: Bug) -> None:
    path = ROOT / "octavo" / "core" / bug.file
    before = path.read_text()
    assert bug.apply(before) != before


def test_there_are_many_bugs_of_different_names() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 30
