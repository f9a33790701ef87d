"""Each two values that can meet have met: requests, sizes, forms, ways and what happens.

Every cell has the same text, is answered well, costs no prompt worker and leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.pairwise import pairwise
from tests.server.matrix.cells import BODIES, KINDS, STRUCTS, Cell, Fate, every_cell
from tests.server.matrix.conftest import Worlds, by_server

CHOSEN = list(pairwise(every_cell(), lambda cell: cell.values))


def test_every_request_that_generates_has_a_body() -> None:
    assert set(BODIES) == set(KINDS)
    assert len(KINDS) == len(STRUCTS)  # no two have the same name


@pytest.mark.parametrize("cell", [each for each in CHOSEN if each.fate is not Fate.DIES], ids=str)
def test_a_request_is_answered_as_in_every_other_way(worlds: Worlds, cell: Cell) -> None:
    worlds.check(cell)


@pytest.mark.slow
@pytest.mark.parametrize(
    "cells",
    by_server([each for each in CHOSEN if each.fate is Fate.DIES]),
    ids=["with a journal", "without"],
)
def test_requests_outlive_their_engine_together(worlds: Worlds, cells: Sequence[Cell]) -> None:
    """A new engine continues all of them in the middle of their answers."""
    worlds.check(*cells)
