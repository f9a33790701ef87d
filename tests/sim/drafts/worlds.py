"""Draws worlds whose requests have predictions, by seeds of their own."""

from __future__ import annotations

import random
from dataclasses import replace

from octavo.core.config import CoreConfig
from octavo.core.kv.manager import KVManager
from tests.sim.extras import MOST_ENCODED
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
