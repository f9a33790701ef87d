"""What every test run shares: the quick tests first, and the same examples on every run."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Hypothesis draws from the test's own name instead of from the clock, keeps no database between
# runs, and does not time anything: the same commit gives the same answer on a slow machine.
settings.register_profile(
    "octavo",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("octavo")

TESTS = Path(__file__).parent
FIRST = ("tidy", "core")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A broken rule or unit test should show in the first second, not after the last world."""
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> tuple[bool, int]:
    """Slow tests last; before them the directories of FIRST in that order, then all the others."""
    directory = item.path.relative_to(TESTS).parts[0]
    rank = FIRST.index(directory) if directory in FIRST else len(FIRST)
    return item.get_closest_marker("slow") is not None, rank
