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


def draw_blocks(seed: int) -> World:
    """Return the world of a seed, with a second model that proposes a block in one pass.

    It reads what the first one keeps for it, in a group beside the others.
    """
    world = draw_world(seed)
    if world.costs is not None:  # another executor's
        world = replace(draw_world(seed + 1), seed=seed)
    rng = random.Random(f"{seed} blocks")
    own = [replace(group, owner="") for group in world.config.groups if group.kind != "none"]
    sizes = sorted({group.block_bytes for group in own} | {1, 2})
    context = replace(_draw_group(rng, sizes), kind="full", owner="")
    has_trees = rng.random() < 0.3
    if has_trees:
        own = [group for group in own if group.kind in ("full", "latent", "cross")]
    config = replace(
        world.config,
        groups=(*own, context),
        num_blocks=100_000,
        chunked_prefill=world.config.chunked_prefill or has_trees,
        block_size=rng.choice((world.config.block_size, 4, 7, 16)),
        max_drafts=(most := rng.randint(1, 6)) + 6 * has_trees,
        max_ahead=rng.randint(1, most),
        max_ahead_len=rng.choice((0, 0, rng.randint(2, world.config.max_model_len))),
        max_ahead_lag=world.config.max_model_len,
        ahead_in_block=True,
        ahead_forks=True,
        ahead_width=rng.randint(1, 3),
        max_branches=rng.choice((1, 4, 12)) if has_trees else 0,
    )
    return replace(world, config=_with_blocks(rng, config), has_drafter=True)


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
    return _with_blocks(rng, config)


def _with_blocks(rng: random.Random, config: CoreConfig) -> CoreConfig:
    """Return the configuration with as many blocks as the longest sequence needs, or some more."""
    needed = KVManager(replace(config, num_blocks=2), b"").peak_pages(
        config.max_model_len - 1, MOST_ENCODED
    )
    room = rng.choice((0, 1, rng.randint(0, 12), rng.randint(0, 100)))
    return replace(config, num_blocks=1 + max(1, needed) + room)


def _draw_group(rng: random.Random, sizes: list[int]) -> KVGroup:
    """Return a group that keeps rows: a state has no place for what may be refused."""
    window = rng.randint(1, 40) if rng.random() < 0.4 else None
    return KVGroup(window, rng.choice(("full", "latent")), rng.choice(sizes), owner=OWNER)
