"""Draws worlds with predictions, and worlds with trees of drafts, by seeds of their own."""

from __future__ import annotations

import random
from dataclasses import replace

from octavo.core.config import CoreConfig, KVGroup
from octavo.core.kv.manager import KVManager
from tests.sim.extras import MOST_ENCODED
from tests.sim.programs.worlds import draw_programs
from tests.sim.world import World, draw_world


def draw_predictions(seed: int) -> World:
    """Return the world of a seed, in which most requests have a prediction."""
    world = draw_world(seed)
    if world.costs is not None:  # another executor's
        world = replace(draw_world(seed + 1), seed=seed)
    config = _with_drafts(random.Random(f"{seed} predictions"), world.config)
    return replace(world, config=config, predicts=True)


def _with_drafts(rng: random.Random, config: CoreConfig) -> CoreConfig:
    """Return the configuration with drafts, and blocks for them."""
    config = replace(
        config,
        max_drafts=rng.choice((1, 3, 8, 20)),
        max_step_drafts=rng.choice((0, 0, 1, 5, 24)),
        proposes=rng.random() < 0.4,
    )
    needed = KVManager(replace(config, num_blocks=2), b"").peak_pages(
        config.max_model_len - 1, MOST_ENCODED
    )
    return replace(config, num_blocks=max(config.num_blocks, 1 + needed))


def draw_trees(seed: int) -> World:
    """Return the world of a seed, whose drafts are trees; in some a second model proposes them."""
    if seed % 3 == 2:
        world = draw_programs(seed)
    else:
        world = draw_world(seed)
        if world.costs is not None:  # another executor's
            world = replace(draw_world(seed + 1), seed=seed)
    rng = random.Random(f"{seed} trees")
    kinds = ("full", "latent", "cross")
    config = world.config
    groups = tuple([each for each in config.groups if each.kind in kinds])
    if all(each.owner or each.kind == "cross" for each in groups):
        groups = (*groups, KVGroup())
    config = replace(
        config,
        groups=groups,
        chunked_prefill=True,
        block_size=rng.choice((config.block_size, 1, 2, 4, 16)),
        max_drafts=rng.randint(max(4, config.max_drafts), 12),
        max_num_batched_tokens=max(config.max_num_batched_tokens, rng.choice((1, 6, 12, 40))),
        max_branches=rng.choice((1, 3, 8, 30)),
        ahead_width=rng.randint(1, 4),
        ahead_forks=rng.random() < 0.5,
        num_blocks=100_000,
    )
    needed = KVManager(replace(config, num_blocks=2), b"").peak_pages(
        config.max_model_len - 1, MOST_ENCODED
    )
    room = rng.choice((0, 8, 40, 200))
    return replace(world, config=replace(config, num_blocks=1 + max(1, needed) + room))
