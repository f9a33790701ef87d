"""Settings of every test run: quick tests first, and the same examples on every run.

`--shuffle SEED` runs the tests in a random order, to find those that depend on their order.
`--no-torch` skips the tests that need PyTorch, for a Python that has no CPU build of it.
`--covered PATH` leaves out the quick tests of a directory or file, which `make coverage` has run.
`--whole` runs all cases of the tests marked `matrix` or `sample`, of which other runs choose a few.
"""

from __future__ import annotations

import gc
import logging
import random
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from octavo.observe.collection import freeze
from tests.pairwise import leave_out

# Hypothesis takes its seed from the test's name instead of the clock, keeps no database between
# runs, and measures no time: the same commit gives the same result on a slow machine.
settings.register_profile(
    "octavo",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("octavo")

# Engines and references compute in one thread, unless a test asks for more. Models this small are
# slower with more; and several workers with several threads each, on as many cores as workers, wait
# for each other at every barrier, which is a hundred times slower on a busy machine.
ONE_THREAD = ("OCTAVO_CPU_THREADS", "OMP_NUM_THREADS")

TESTS = Path(__file__).parent
FIRST = ("tidy", "core")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run in an order of this seed")
    parser.addoption("--no-torch", action="store_true", help="skip the tests that need torch")
    parser.addoption("--whole", action="store_true", help="run all cases of marked tests")
    parser.addoption("--covered", action="append", default=[], help="leave out its quick tests")


def pytest_configure() -> None:
    """Set the number of threads before a library reads it, and let Ctrl-C interrupt again."""
    environment = pytest.MonkeyPatch()
    for name in ONE_THREAD:
        environment.setenv(name, "1")
    # Which kernels compute must not depend on how fast the machine is at the moment.
    environment.setenv("OCTAVO_CPU_CALIBRATION", "off")
    # A shell without job control starts a command with & so that it ignores Ctrl-C, and all its
    # children inherit that: the tests of Ctrl-C would wait for an interrupt that never comes.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_quick(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests so that a broken rule or unit test shows in the first second."""
    if not config.getoption("whole"):
        left_out = leave_out(items)
        config.hook.pytest_deselected(items=list(left_out.values()))
        items[:] = [each for each in items if each.nodeid not in left_out]
    covered = [config.rootpath / each for each in config.getoption("covered")]
    ran = [
        each for each in items if _is_quick(each) and any(map(each.path.is_relative_to, covered))
    ]
    if ran:
        config.hook.pytest_deselected(items=ran)
        names = {each.nodeid for each in ran}
        items[:] = [each for each in items if each.nodeid not in names]
    seed = config.getoption("shuffle")
    if seed is None:
        items.sort(key=_turn)
    else:
        random.Random(seed).shuffle(items)


def pytest_collection_finish() -> None:
    """Keep modules and tests, which all stay alive, out of the collections that tests ask for."""
    freeze()


def _turn(item: pytest.Item) -> tuple[bool, int]:
    """Return a sort key: slow tests last, before them the directories of FIRST, then the others."""
    directory = item.path.relative_to(TESTS).parts[0]
    rank = FIRST.index(directory) if directory in FIRST else len(FIRST)
    return item.get_closest_marker("slow") is not None, rank


_WITH_TORCH = ("import torch", "from tests.backends.torch.")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip a folder whose conftest.py imports torch, with --no-torch."""
    conftest = collection_path / "conftest.py"
    if config.getoption("no_torch") and conftest.is_file():
        lines = conftest.read_text().splitlines()
        return True if any(each.startswith(_WITH_TORCH) for each in lines) else None
    return None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a module that imports torch, with --no-torch."""
    report = yield
    _skip_without_torch(report, collector)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip a test that imports torch or asks for the torch backend, with --no-torch."""
    report = yield
    _skip_without_torch(report, item)
    return report


def _skip_without_torch(
    report: pytest.CollectReport | pytest.TestReport, node: pytest.Collector | pytest.Item
) -> None:
    # peft is installed with torch.
    missing = ("No module named 'torch'", "No module named 'peft'", "PyTorch is not installed")
    if not node.config.getoption("no_torch") or not report.failed:
        return
    if any(why in str(report.longrepr) for why in missing):
        report.outcome = "skipped"
        report.longrepr = (str(node.path), 1, "Skipped: needs torch")


@pytest.fixture(scope="session", autouse=True)
def _patient_workers() -> Iterator[None]:
    """Let workers start, and shapes outside of a server be checked, as slowly as they do."""
    from octavo.workers import process, shape_checker  # not by those that only collect

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "START_SECONDS", 300.0)
        patch.setattr(shape_checker, "START_SECONDS", 300.0)
        patch.setattr(shape_checker.SHARED, "_seconds", 300.0)
        yield


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Return the records of a test without those about what earlier tests have left.

    asyncio logs an error that was not looked at when its task is collected.
    """
    gc.collect()
    return caplog


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
