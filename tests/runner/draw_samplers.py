"""Options of further samplers, drawn at random for tests that mix all kinds of requests."""

from __future__ import annotations

import random

from octavo.core.sampling_params import SAMPLERS, SamplerOptions


def draw_samplers(chance: random.Random) -> SamplerOptions:
    """Return options some of which are on, at times in an order of their own."""

    def sometimes(value: float, off: float) -> float:
        return value if chance.random() < 0.4 else off

    order = list(SAMPLERS[2:])
    chance.shuffle(order)
    return SamplerOptions(
        typical_p=sometimes(chance.choice([0.2, 0.9]), 1.0),
        top_n_sigma=sometimes(chance.choice([0.7, 2.0]), 0.0),
        xtc_probability=sometimes(chance.choice([0.5, 1.0]), 0.0),
        xtc_threshold=chance.choice([0.02, 0.1]),
        dynatemp_range=sometimes(chance.choice([0.3, 2.0]), 0.0),
        dynatemp_exponent=chance.choice([0.7, 1.0, 2.0]),
        min_keep=chance.choice([0, 0, 3]),
        repeat_last_n=chance.choice([-1, 0, 4, 20]),
        dry_multiplier=sometimes(chance.choice([0.5, 3.0]), 0.0),
        dry_allowed_length=chance.choice([1, 2, 3]),
        dry_penalty_last_n=chance.choice([-1, 6]),
        dry_breaker_ids=(3, 17),
        samplers=("penalties", "dry", *order) if chance.random() < 0.3 else (),
        mirostat=chance.choice([0, 0, 0, 0, 1, 2]),
        mirostat_tau=chance.choice([0.5, 2.0, 5.0]),
        mirostat_eta=chance.choice([0.1, 0.8]),
    )
