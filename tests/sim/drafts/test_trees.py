"""Worlds whose drafts are trees hold, and workers that compute trees wrongly are found."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.sim.drafts.trees import Branches, BranchView
from tests.sim.drafts.worlds import draw_trees
from tests.sim.kv.kinds import Rows
from tests.sim.shrink import failure_of
from tests.sim.simulation import Simulation

NUM_WORLDS = 600
NUM_FOR_PLANTED = 100


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("first", range(0, NUM_WORLDS, 100))
def test_worlds_hold(first: int) -> None:
    for seed in range(first, first + 100):
        failure = failure_of(draw_trees(seed))
        replay = f"python -m tests.sim --kind trees --seeds 1 --from {seed}"
        assert failure is None, f"{replay}: {failure!r}"


@pytest.mark.slow
def test_the_worlds_reach_what_they_are_for() -> None:
    seen = dict.fromkeys(["branches", "nested", "turned", "accepted", "preempted"], 0)
    for seed in range(200):
        simulation = Simulation(draw_trees(seed)).run()
        worker, stats = simulation.executor.workers[0], simulation.engine.scheduler.stats
        seen["branches"] += worker.num_branches
        seen["nested"] += worker.num_nested
        seen["turned"] += worker.num_turned
        seen["accepted"] += stats.num_accepted_drafts
        seen["preempted"] += stats.num_preemptions
    assert min(seen.values()) > 2, seen


# workers that do what no worker may

_write, _accept = Branches._write, Branches.accept


def _reads_another_branch(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a branch reads the chunk's rows in place of those that it follows."""

    def tables(self: Branches, path: list[int], position: int) -> list[list[int]]:
        return self._slot.tables

    patch.setattr(Branches, "_row_tables", tables)


def _leaves_out_what_precedes(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: the rows of this step before a branch are not in its first block."""

    def write(
        self: Branches,
        group: Rows,
        view: BranchView,
        path: list[int],
        places: tuple[int, int, int],
        size: int,
    ) -> None:
        _, entry, begin = places
        _write(self, group, view, path, (begin, entry, begin), size)

    patch.setattr(Branches, "_write", write)


def _leaves_a_siblings_rows(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: the chunk's rows stay where another branch's were accepted."""
    patch.setattr(Branches, "accept", lambda *_: None)


def _copies_all_blocks_but_one(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: the last block of an accepted branch is not copied."""

    def accept(self: Branches, groups: Sequence[Rows], walk: Sequence[int], size: int) -> None:
        tables = self._tables
        if walk:
            end = (self._known + len(walk) - 1) // size
            self._tables = [
                [
                    [*theirs[:end], *own[end:]]
                    for theirs, own in zip(each, self._slot.tables, strict=True)
                ]
                for each in tables
            ]
        _accept(self, groups, walk, size)

    patch.setattr(Branches, "accept", accept)


def _takes_rows_for_positions(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: the position of a branch's row is that behind the chunk's last."""
    path_tables = Branches.compute

    def compute(self: Branches, groups: Sequence[Rows], first: int, size: int) -> None:
        shift = self._num_main
        for group in groups:
            patch.setattr(group, "_codes", _shifted(group, self._known, shift))
        path_tables(self, groups, first, size)
        for group in groups:
            patch.delattr(group, "_codes")

    def _shifted(group: Rows, known: int, shift: int) -> object:
        def codes(slot: object, first: int, tokens: list[int]) -> list[int]:
            moved = first + shift if first >= known else first
            return type(group)._codes(group, slot, moved, tokens)  # type: ignore[arg-type]

        return codes

    patch.setattr(Branches, "compute", compute)


_PLANTED = (
    _reads_another_branch,
    _leaves_out_what_precedes,
    _leaves_a_siblings_rows,
    _copies_all_blocks_but_one,
    _takes_rows_for_positions,
)


@pytest.mark.parametrize("plant", _PLANTED)
def test_planted_bugs_of_workers_are_found(plant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(plant)
    plant(monkeypatch)
    failures = (failure_of(draw_trees(seed)) for seed in range(NUM_FOR_PLANTED))
    assert next(filter(None, failures), None) is not None
