"""The whole matrix: `make test-matrix`. Its name keeps it out of other test runs."""

from __future__ import annotations

import sys

import pytest

from tests.server.matrix.cells import Cell, every_cell
from tests.server.matrix.conftest import Worlds


@pytest.mark.parametrize("cell", every_cell(), ids=str)
def test_a_request_is_answered_as_in_every_other_way(worlds: Worlds, cell: Cell) -> None:
    worlds.check(cell)


def test_the_longest_stall_of_an_event_loop_is_reported(
    worlds: Worlds, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stall is not judged, since the machine stalls too."""
    with capsys.disabled():
        sys.stdout.write(f"\nthe longest stall: {1000 * worlds.longest_stall:.0f} ms\n")
