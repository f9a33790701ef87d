"""The fixture of the matrix: a server in an event loop of its own, and what holds for each cell."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from octavo.text.pieces import FORMS
from tests.server.llama.infill_files import make_infill_directory
from tests.server.matrix.cells import (
    ALIKE,
    Asked,
    Cell,
    Drawn,
    Fate,
    Form,
    Size,
    Way,
    is_possible,
)
from tests.server.matrix.world import World, check_nothing_is_left


class Worlds:
    """A server with a journal and one without, each begun when it is first needed."""

    def __init__(self, directory: Path, new_files: Callable[[], Path], stack: ExitStack) -> None:
        self._directory, self._new_files, self._stack = directory, new_files, stack
        self._world, self._expected = cache(self._new_world), cache(self._ask_plainly)

    def check(self, *cells: Cell) -> None:
        """Ask at once as some cells of one server say, and check all that holds for each."""
        known = [self._expected(_like(cell), cell.asked, cell.drawn) for cell in cells]
        assert all(known)
        gc.collect()
        gc.disable()
        try:
            runner, world = self._world(has_journal=cells[0].way is Way.JOURNAL)
            assert runner.run(world.answers(cells)) == known
            runner.run(check_nothing_is_left())
        finally:
            gc.enable()
        assert not world.server.active
        assert not world.server.admission.num_open
        assert world.server.metrics.prompt_workers_killed.value() == 0

    @property
    def longest_stall(self) -> float:
        """The most seconds that an event loop was late."""
        worlds = [self._world(has_journal=each)[1] for each in (False, True)]
        return max(stall for world in worlds for stall in (0.0, *world.stalls))

    def _ask_plainly(self, kind: str, asked: Asked, drawn: Drawn) -> str:
        runner, world = self._world(has_journal=False)
        return runner.run(world.answers([_plain(kind, asked, drawn)]))[0]

    def _new_world(self, *, has_journal: bool) -> tuple[asyncio.Runner, World]:
        runner = self._stack.enter_context(asyncio.Runner())
        world = World(self._directory, self._new_files(), has_journal=has_journal)
        self._stack.callback(lambda: runner.run(world.close()))
        runner.run(world.open())
        gc.collect()
        gc.freeze()  # so that the looks at what requests leave see few other objects
        return runner, world


def _like(cell: Cell) -> str:
    """Return the first of the requests that are answered with the same text."""
    alike = next((each for each in ALIKE if cell.kind in each), {cell.kind})
    return min(kind for kind in alike if is_possible(_plain(kind, cell.asked, cell.drawn)))


def _plain(kind: str, asked: Asked, drawn: Drawn) -> Cell:
    return Cell(kind, Size.SMALL, Form.WHOLE, Way.PLAIN, Fate.STAYS, asked, drawn)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    """Return the servers of the matrix."""
    pytest.importorskip("grpc")
    marks = (*FORMS[0], "yes", "no")  # labels of decisions, which must be tokens
    directory = make_infill_directory(tmp_path_factory.mktemp("text"), marks)
    with ExitStack() as stack:
        yield Worlds(directory, lambda: tmp_path_factory.mktemp("matrix"), stack)


def by_server(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Return cells in groups that one server answers."""
    with_journal = [each for each in cells if each.way is Way.JOURNAL]
    return [with_journal, [each for each in cells if each.way is not Way.JOURNAL]]
