"""Worlds with a second model hold, and its KV is checked as that of the first."""

from __future__ import annotations

from collections.abc import Iterable

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
    names = "proposed guessed behind accepted refused cached preempted restarted"
    seen = dict.fromkeys(names.split(), 0)
    for seed in range(120):
        simulation = Simulation(draw_programs(seed)).run()
        program, stats = simulation.executor.workers[0].program, simulation.engine.scheduler.stats
        assert program is not None
        seen["proposed"] += program.num_proposed
        seen["guessed"] += program.num_guessed
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


def _reads_the_next_token(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: the last row of a block follows from the token behind it, if that is known."""
    compute, codes = Rows.compute, Rows.codes_of

    def shifted(self: Rows, slot: Slot, position: int, token: int) -> int:
        is_last = self.is_owned and position % self.size == self.size - 1
        known = slot.tokens[position + 1 : position + 2]
        return known[0] if is_last and known else token

    def of_next(self: Rows, slot: Slot, end: int) -> list[int]:
        tokens = [shifted(self, slot, at, token) for at, token in enumerate(slot.tokens[:end])]
        return self._codes(slot, 0, tokens) if self.is_owned else codes(self, slot, end)

    def computing(self: Rows, slot: Slot, first: int, end: int, tokens: list[int]) -> None:
        tokens = [shifted(self, slot, at, token) for at, token in enumerate(tokens, first)]
        compute(self, slot, first, end, tokens)

    patch.setattr(Rows, "codes_of", of_next)
    patch.setattr(Rows, "compute", computing)


def _guesses_too_early(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a guess replaces the first model's last row."""
    guess = Program._guess

    def before(self: Program, slot: Slot, position: int, slots: Iterable[Slot]) -> None:
        guess(self, slot, max(0, position - 1), slots)

    patch.setattr(Program, "_guess", before)


_PLANTED = (
    _keeps_rows_of_proposals,
    _skips_a_row_behind,
    _reads_the_next_token,
    _guesses_too_early,
)


@pytest.mark.parametrize("plant", _PLANTED)
def test_planted_bugs_of_workers_are_found(plant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(plant)
    plant(monkeypatch)
    failures = (failure_of(draw_programs(seed)) for seed in range(NUM_FOR_PLANTED))
    assert next(filter(None, failures), None) is not None
