"""Worlds hold whose second model proposes a block of tokens in one pass."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from octavo.core.pace.ahead_counts import AheadCounts
from octavo.core.plan_draft import PlanDraft
from octavo.core.sequence import Sequence
from tests.sim.executor import Slot
from tests.sim.kv.kinds import Rows
from tests.sim.programs.block import BlockProgram
from tests.sim.programs.worlds import draw_blocks
from tests.sim.shrink import failure_of
from tests.sim.simulation import Simulation

NUM_WORLDS = 600
NUM_FOR_PLANTED = 100


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("first", range(0, NUM_WORLDS, 100))
def test_worlds_hold(first: int) -> None:
    for seed in range(first, first + 100):
        failure = failure_of(draw_blocks(seed))
        replay = f"python -m tests.sim --kind blocks --seeds 1 --from {seed}"
        assert failure is None, f"{replay}: {failure!r}"


@pytest.mark.slow
def test_the_worlds_reach_what_they_are_for() -> None:
    names = "proposed left accepted refused cached preempted restarted"
    seen = dict.fromkeys(names.split(), 0)
    for seed in range(120):
        simulation = Simulation(draw_blocks(seed)).run()
        program = simulation.executor.workers[0].program
        stats = simulation.engine.scheduler.stats
        assert isinstance(program, BlockProgram)
        seen["proposed"] += program.num_proposed
        seen["left"] += program.num_guessed
        seen["accepted"] += stats.num_accepted_drafts
        seen["refused"] += stats.num_drafts - stats.num_accepted_drafts
        seen["cached"] += stats.num_cached_tokens
        seen["preempted"] += stats.num_preemptions
        seen["restarted"] += sum(each.restarted for each in simulation.journals.values())
    assert min(seen.values()) > 20, seen


# workers and cores that do what none may


def _begins_too_early(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a block's first row replaces that of the last position that is computed."""
    leave = BlockProgram._leave

    def before(
        self: BlockProgram, group: Rows, slot: Slot, position: int, slots: Iterable[Slot]
    ) -> None:
        leave(self, group, slot, max(0, position - 1), slots)

    patch.setattr(BlockProgram, "_leave", before)


def _plans_places_for_what_is_asked(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: there are places for the tokens that are asked for, and not for all rows."""
    with_room = AheadCounts._with_room

    def fewer(self: AheadCounts, sequence: Sequence, count: int, draft: PlanDraft) -> int:
        self._in_block = False
        try:
            return with_room(self, sequence, count, draft)
        finally:
            self._in_block = True

    patch.setattr(AheadCounts, "_with_room", fewer)


@pytest.mark.parametrize("plant", [_begins_too_early, _plans_places_for_what_is_asked])
def test_planted_bugs_are_found(plant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(plant)
    plant(monkeypatch)
    failures = (failure_of(draw_blocks(seed)) for seed in range(NUM_FOR_PLANTED))
    assert next(filter(None, failures), None) is not None
