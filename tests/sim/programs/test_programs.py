"""Worlds with a second model hold, and its KV is checked as that of the first."""

from __future__ import annotations

import pytest

from tests.sim.executor import Slot
from tests.sim.kv.kinds import Rows
from tests.sim.kv.memory import POISON
from tests.sim.programs.program import OWNER, Program
from tests.sim.programs.worlds import draw_programs
from tests.sim.shrink import failure_of
from tests.sim.simulation import Simulation

NUM_WORLDS = 600
NUM_FOR_PLANTED = 100


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("first", range(0, NUM_WORLDS, 100))
def test_worlds_hold(first: int) -> None:
    for seed in range(first, first + 100):
        failure = failure_of(draw_programs(seed))
        replay = f"python -m tests.sim --kind programs --seeds 1 --from {seed}"
        assert failure is None, f"{replay}: {failure!r}"


@pytest.mark.slow
def test_the_worlds_reach_what_they_are_for() -> None:
    names = ("proposed", "behind", "accepted", "refused", "cached", "preempted", "restarted")
    seen = dict.fromkeys(names, 0)
    for seed in range(120):
        simulation = Simulation(draw_programs(seed)).run()
        program, stats = simulation.executor.workers[0].program, simulation.engine.scheduler.stats
        assert program is not None
        seen["proposed"] += program.num_proposed
        seen["behind"] += program.num_behind
        seen["accepted"] += stats.num_accepted_drafts
        seen["refused"] += stats.num_drafts - stats.num_accepted_drafts
        seen["cached"] += stats.num_cached_tokens
        seen["preempted"] += stats.num_preemptions
        seen["restarted"] += sum(each.restarted for each in simulation.journals.values())
    assert min(seen.values()) > 20, seen


@pytest.mark.parametrize("seed", range(20))
def test_a_seed_determines_the_whole_run(seed: int) -> None:
    once = Simulation(draw_programs(seed), record=True).run()
    again = Simulation(draw_programs(seed), record=True).run()
    assert once.trace == again.trace
    assert any(group.owner == OWNER for group in once.config.groups)


# workers that do what no worker may


def _keeps_rows_of_proposals(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a row that was proposed is not computed again, right or refused."""

    def written(self: Program, group: Rows, slot: Slot, start: int, end: int) -> int:
        slot.cells[group.group][:] = group.codes_of(slot, end)
        for position in range(group.oldest(start), end):
            block = slot.tables[group.group][position // group.size]
            if group.memory.cells[group.group][block][position % group.size] == POISON:
                return position
        return end

    patch.setattr(Program, "_first_lacking", written)


def _skips_a_row_behind(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: of what was known before its step, the second model leaves out one row."""
    first_lacking = Program._first_lacking

    def later(self: Program, group: Rows, slot: Slot, start: int, end: int) -> int:
        first = first_lacking(self, group, slot, start, end)
        return first + (first + 1 < start)

    patch.setattr(Program, "_first_lacking", later)


@pytest.mark.parametrize("plant", [_keeps_rows_of_proposals, _skips_a_row_behind])
def test_planted_bugs_of_workers_are_found(plant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(plant)
    plant(monkeypatch)
    failures = (failure_of(draw_programs(seed)) for seed in range(NUM_FOR_PLANTED))
    assert next(filter(None, failures), None) is not None
