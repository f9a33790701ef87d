"""Worlds with a second model hold, and its KV is checked as that of the first."""

from __future__ import annotations

import pytest

from tests.sim.executor import Slot
from tests.sim.kv.kinds import Rows
from tests.sim.kv.memory import POISON
from tests.sim.programs.program import OWNER
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
    names = ("proposed", "without room", "accepted", "refused", "cached", "preempted", "restarted")
    seen = dict.fromkeys(names, 0)
    for seed in range(120):
        simulation = Simulation(draw_programs(seed)).run()
        program, stats = simulation.executor.workers[0].program, simulation.engine.scheduler.stats
        assert program is not None
        seen["proposed"] += program.num_proposed
        seen["without room"] += program.num_without_room
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
    compute = Rows.compute

    def lazy(self: Rows, slot: Slot, first: int, end: int, tokens: list[int]) -> None:
        block = slot.tables[self.group][first // self.size]
        found = self.memory.cells[self.group][block][first % self.size]
        compute(self, slot, first, end, tokens)
        if found != POISON and self.is_owned:
            self.memory.cells[self.group][block][first % self.size] = found
            self._read_back(slot, first, end)

    patch.setattr(Rows, "compute", lazy)


def _skips_the_second_model(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a chunk without a sample is computed by the first model alone."""
    compute = Rows.compute

    def partial(self: Rows, slot: Slot, first: int, end: int, tokens: list[int]) -> None:
        if self.is_owned and end < len(slot.tokens):
            slot.cells[self.group][first:] = self._codes(slot, first, tokens)
        else:
            compute(self, slot, first, end, tokens)

    patch.setattr(Rows, "compute", partial)


@pytest.mark.parametrize("plant", [_keeps_rows_of_proposals, _skips_the_second_model])
def test_planted_bugs_of_workers_are_found(plant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(plant)
    plant(monkeypatch)
    failures = (failure_of(draw_programs(seed)) for seed in range(NUM_FOR_PLANTED))
    assert next(filter(None, failures), None) is not None
