"""The simulator's worlds over the real runner on the native engine."""

from __future__ import annotations

from functools import partial

import pytest

from octavo.models.llama import Llama
from tests.backends.native.tiny import make_native
from tests.runner.host_store import with_store
from tests.runner.real_world import RealSimulation
from tests.runner.tiny import Family, Mixed, convolving, latent, make_groups
from tests.sim.world import draw_world

# The first worlds with a block size that the native engine accepts.
SEEDS = [seed for seed in range(220) if draw_world(seed, is_plain=True).config.block_size % 16 == 0]


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("part", range(4))
def test_worlds_hold(part: int) -> None:
    """Each request gets the same tokens as alone, in spite of aborts, deaths, NaN and drafts."""
    hold(SEEDS[part::4], "float32")


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8", "fp8_e4m3", "fp8_e5m2", "int4"])
def test_worlds_hold_over_smaller_caches(kv_dtype: str) -> None:
    hold(SEEDS[::6], kv_dtype)


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8", "int4"])
def test_worlds_hold_with_layers_of_different_shapes(kv_dtype: str) -> None:
    """Blocks of two sizes share one pool of bytes, and no sequence reads another's."""
    hold(SEEDS[1::5], kv_dtype, Mixed)


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8", "fp8_e4m3"])
def test_worlds_hold_with_latent_rows(kv_dtype: str) -> None:
    hold(SEEDS[2::5], kv_dtype, latent)


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8", "int4"])
def test_worlds_hold_with_states(kv_dtype: str) -> None:
    """States are floats whatever the type of keys and values, which have pages beside them."""
    hold(SEEDS[3::5], kv_dtype, convolving)


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("kv_dtype", "family"),
    [
        *(("float32", Llama), ("int8", Mixed), ("bfloat16", latent), ("int8", convolving)),
        *(("fp8_e4m3", Mixed), ("int4", Mixed)),
    ],
)
def test_worlds_hold_while_kv_is_saved_and_loaded(kv_dtype: str, family: Family) -> None:
    """Blocks that come from a store, in this engine or a later one, change no request's output."""
    assert hold(SEEDS[::6], kv_dtype, family, "good") > 5


def hold(seeds: list[int], kv_dtype: str, family: Family = Llama, store: str = "none") -> int:
    """Run every world to its end, with a cache of this type; return how many blocks were loaded."""
    assert len(seeds) >= 8
    num_loaded = 0
    for seed in seeds:
        backend = partial(make_native, kv_dtype=kv_dtype, family=family)
        groups = partial(make_groups, kv_dtype=kv_dtype, family=family)
        world = draw_world(seed, is_plain=True)
        world = world if store == "none" else with_store(world, store)
        simulation = RealSimulation(world, backend, groups)
        try:
            simulation.run()
        except Exception as error:
            raise AssertionError(f"world {seed}, at tick {simulation.num_ticks}") from error
        num_loaded += simulation.host_store.num_loaded
    return num_loaded
