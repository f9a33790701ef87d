"""Runs worlds of groups for the simulator's command line: `python -m tests.sim --kind groups`."""

from __future__ import annotations

import ctypes
import logging
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path

from tests.sim.groups.library import load
from tests.sim.groups.world import GroupWorld
from tests.sim.shell.one_tokenizer import one_tokenizer


@contextmanager
def quiet() -> Iterator[None]:
    """Log nothing: in these worlds engines end all the time."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@cache
def _prepared() -> AbstractContextManager[None]:
    """Load the one tokenizer of all worlds of this process, which lives as long as the result."""
    with tempfile.TemporaryDirectory() as name:
        made = one_tokenizer(Path(name))
        made.__enter__()
    return made


def run_seed(seed: int, library: ctypes.CDLL | None = None) -> tuple[int, int, str | None]:
    """Run one world with this code of groups; return the seed, its events, and its failure."""
    _prepared()
    world = GroupWorld(seed, library or load())
    failure = None
    with quiet():
        try:
            world.run()
        except Exception as error:  # any exception is a failure
            failure = f"{type(error).__name__}: {error}"
    return seed, sum(world.num_events.values()), failure
