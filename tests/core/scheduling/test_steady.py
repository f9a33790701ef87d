"""Plans that are made from the last one are those that would be made anew, in random worlds."""

from __future__ import annotations

import pytest

from octavo.core.steady.next_plan import SteadyDecode
from tests.sim.simulation import Simulation
from tests.sim.world import draw_world


class Counted:
    """The number of plans that could be made from the last one, whether they were or not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.is_used = True
        self._continues = SteadyDecode.continues
        monkeypatch.setattr(SteadyDecode, "continues", lambda steady: self._ask(steady))

    def _ask(self, steady: SteadyDecode) -> bool:
        continues = self._continues(steady)
        self.count += continues
        return continues and self.is_used


@pytest.mark.sample(3)
@pytest.mark.parametrize("first", [700, *range(0, 200, 25)])
def test_plans_made_from_the_last_one_are_those_made_anew(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch)
    for seed in range(first, first + 25):
        counted.is_used = True
        made = Simulation(draw_world(seed), record=True).run()
        counted.is_used = False
        anew = Simulation(draw_world(seed), record=True).run()
        assert made.trace == anew.trace, f"world {seed}"
        one, other = made.engine.scheduler.stats, anew.engine.scheduler.stats
        assert one == other, f"world {seed}"
    assert counted.count > 100
