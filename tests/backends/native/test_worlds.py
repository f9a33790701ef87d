"""The simulator's worlds over the real runner on the native engine."""

from __future__ import annotations

from functools import partial

import pytest

from tests.backends.native.tiny import make_native
from tests.runner.real_world import RealSimulation
from tests.sim.world import draw_world

# Those of the first worlds whose blocks the native engine takes.
SEEDS = [seed for seed in range(220) if draw_world(seed).config.block_size % 16 == 0]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_worlds_hold(part: int) -> None:
    """Aborts, preemptions, resets, deaths, NaN, forks and drafts: equal to each request alone."""
    hold(SEEDS[part::4], "float32")


@pytest.mark.slow
@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8"])
def test_worlds_hold_over_smaller_caches(kv_dtype: str) -> None:
    hold(SEEDS[::6], kv_dtype)


def hold(seeds: list[int], kv_dtype: str) -> None:
    """Every world to its end; whose cache is of this kind."""
    assert len(seeds) >= 8
    for seed in seeds:
        backend = partial(make_native, kv_dtype=kv_dtype)
        simulation = RealSimulation(draw_world(seed), backend)
        try:
            simulation.run()
        except Exception as error:
            raise AssertionError(f"world {seed}, at tick {simulation.num_ticks}") from error
