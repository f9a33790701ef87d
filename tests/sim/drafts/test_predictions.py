"""Worlds with predictions hold, and reach what they are for."""

from __future__ import annotations

import pytest

from tests.sim.drafts.worlds import draw_predictions
from tests.sim.shrink import failure_of
from tests.sim.simulation import Simulation

NUM_WORLDS = 200


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, NUM_WORLDS, 100))
def test_worlds_hold(first: int) -> None:
    for seed in range(first, first + 100):
        failure = failure_of(draw_predictions(seed))
        replay = f"python -m tests.sim --kind predictions --seeds 1 --from {seed}"
        assert failure is None, f"{replay}: {failure!r}"


@pytest.mark.slow
def test_the_worlds_reach_what_they_are_for() -> None:
    names = ("accepted", "refused", "preempted", "restarted", "alone", "switched off")
    seen = dict.fromkeys(names, 0)
    for seed in range(60):
        simulation = Simulation(draw_predictions(seed)).run()
        stats = simulation.engine.scheduler.stats
        requests = [each.request for each in simulation.journals.values()]
        seen["accepted"] += stats.num_accepted_drafts
        seen["refused"] += stats.num_drafts - stats.num_accepted_drafts
        seen["preempted"] += stats.num_preemptions
        seen["restarted"] += sum(each.restarted for each in simulation.journals.values())
        seen["alone"] += sum(bool(each.prediction) for each in requests) * (
            not simulation.config.proposes
        )
        seen["switched off"] += sum(not each.sampling.speculation for each in requests)
    assert min(seen.values()) > 10, seen


@pytest.mark.parametrize("seed", range(5))
def test_a_seed_determines_the_whole_run(seed: int) -> None:
    once = Simulation(draw_predictions(seed), record=True).run()
    again = Simulation(draw_predictions(seed), record=True).run()
    assert once.trace == again.trace
