"""What every test run shares: the quick tests first, and the same examples on every run."""

import logging
from collections.abc import Iterator
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

# Engines and references compute in one thread, unless a test asks for more. Models this small are
# slower shared out; and several workers with several threads each, on as many cores as there are
# workers, wait for each other at every barrier: a hundred times slower on a busy machine.
ONE_THREAD = ("OCTAVO_CPU_THREADS", "OMP_NUM_THREADS")

TESTS = Path(__file__).parent
FIRST = ("tidy", "core")


def pytest_configure() -> None:
    """Before anything imports a library that looks at them once."""
    environment = pytest.MonkeyPatch()
    for name in ONE_THREAD:
        environment.setenv(name, "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A broken rule or unit test should show in the first second, not after the last world."""
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> tuple[bool, int]:
    """Slow tests last; before them the directories of FIRST in that order, then all the others."""
    directory = item.path.relative_to(TESTS).parts[0]
    rank = FIRST.index(directory) if directory in FIRST else len(FIRST)
    return item.get_closest_marker("slow") is not None, rank


@pytest.fixture(autouse=True)
def _same_logging() -> Iterator[None]:
    """Fail a test that leaves the logging changed: later tests in this process depend on it."""
    before = _logging_state()
    yield
    assert _logging_state() == before, "the test must restore the loggers that it changes"


def _logging_state() -> list[object]:
    state: list[object] = [logging.root.manager.disable]
    for logger in (logging.getLogger(), logging.getLogger("octavo")):
        # pytest adds its own handlers anew in each phase of a test.
        ours = [each for each in logger.handlers if not type(each).__module__.startswith("_pytest")]
        state += [logger.level, logger.propagate, logger.disabled, ours]
    return state
