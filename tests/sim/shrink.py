"""Shrinks a failing world to what the failure needs.

Delta debugging over the list of events: halves, then quarters, then single events are left out
as long as the world still fails. Then the configuration's features are turned off one by one, as
long as it still fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from octavo.core.config import ConfigError, KVGroup
from tests.sim.events import Arrival, Fault
from tests.sim.simulation import Simulation
from tests.sim.world import World

Events = tuple[tuple[int, Arrival | Fault], ...]

# The value of each feature when it is off, in the order of the attempts.
PLAIN: tuple[dict[str, object], ...] = (
    {"pipeline_depth": 1},
    {"max_drafts": 0},
    {"groups": (KVGroup(),)},
    {"policy": "fcfs"},
    {"long_prefill_tokens": 0},
    {"prefix_caching": False},
    {"watermark": 0.0},
    {"max_loras": 0},
    {"ttft_goal": 0.0},
)


def failure_of(world: World) -> Exception | None:
    """Return the exception with which a world fails; None if it holds."""
    try:
        Simulation(world).run()
    except Exception as error:  # any exception is a failure
        return error
    return None


def shrink(world: World, fails: Callable[[World], bool] | None = None) -> World:
    """Return a smaller world that still fails."""
    still_fails = fails or (lambda candidate: failure_of(candidate) is not None)
    world = _fewer_events(world, still_fails)
    for plain in PLAIN:
        try:
            config = replace(world.config, **plain)  # type: ignore[arg-type]
        except ConfigError:
            continue
        if still_fails(replace(world, config=config)):
            world = replace(world, config=config)
    if still_fails(replace(world, forces=False)):
        world = replace(world, forces=False)
    if still_fails(replace(world, slowness=0.0)):
        world = replace(world, slowness=0.0)
    return _fewer_events(world, still_fails)


def _fewer_events(world: World, still_fails: Callable[[World], bool]) -> World:
    size = max(1, len(world.events) // 2)
    while True:
        begin, shorter = 0, False
        while begin < len(world.events):
            rest: Events = world.events[:begin] + world.events[begin + size :]
            if still_fails(replace(world, events=rest)):
                world, shorter = replace(world, events=rest), True
            else:
                begin += size
        if size == 1 and not shorter:
            return world
        size = max(1, size // 2)
