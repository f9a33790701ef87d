"""Draws worlds with a second model, by seeds of their own."""

from __future__ import annotations

import random
from dataclasses import replace

from octavo.core.config import CoreConfig, KVGroup
from octavo.core.kv.manager import KVManager
from tests.sim.extras import MOST_ENCODED
from tests.sim.programs.program import OWNER
from tests.sim.world import World, draw_world


def draw_programs(seed: int) -> World:
    """Return the world of a seed, with a second model that drafts."""
    world = draw_world(seed)
    if world.costs is not None:  # another executor's
        world = replace(draw_world(seed + 1), seed=seed)
    config = _with_drafter(random.Random(f"{seed} programs"), world.config)
    return replace(world, config=config, has_drafter=True)


def _with_drafter(rng: random.Random, config: CoreConfig) -> CoreConfig:
    """Return the configuration with groups of a second model, and blocks for them."""
    own = [replace(group, owner="") for group in config.groups if group.kind != "none"]
    sizes = {group.block_bytes for group in own} | {1, 2}
    drafting = [_draw_group(rng, sorted(sizes)) for _ in range(rng.choice((1, 1, 2)))]
    groups = [*own, *drafting] if rng.random() < 0.7 else [*drafting, *own]
    if len(groups) == len(drafting):
        groups.append(KVGroup())
    config = replace(
        config,
        groups=tuple(groups),
        num_blocks=100_000,
        block_size=rng.choice((config.block_size, 4, 7, 16)),
        max_drafts=(most := rng.randint(1, 6)),
        max_ahead=rng.randint(1, most),
        max_ahead_len=rng.choice((0, 0, rng.randint(2, config.max_model_len))),
    )
    needed = KVManager(replace(config, num_blocks=2), b"").peak_pages(
        config.max_model_len - 1, MOST_ENCODED
    )
    room = rng.choice((0, 1, rng.randint(0, 12), rng.randint(0, 100)))
    return replace(config, num_blocks=1 + max(1, needed) + room)


def _draw_group(rng: random.Random, sizes: list[int]) -> KVGroup:
    """Return a group that keeps rows: a state has no place for what may be refused."""
    window = rng.randint(1, 40) if rng.random() < 0.4 else None
    return KVGroup(window, rng.choice(("full", "latent")), rng.choice(sizes), owner=OWNER)
