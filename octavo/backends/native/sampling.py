"""Native sampling: the tokens that octavo/runner/sampler.py draws, sooner, by the team."""

from __future__ import annotations

import numpy as np

from octavo.backends.base import Draws, Floats, Longs
from octavo.backends.native import _native


class NativeSampling:
    """Implements `octavo.backends.base.SamplingKernel`."""

    def __init__(self, tier: str, team: _native.Team) -> None:
        self._tier = tier
        self._team = team

    def draw(self, logits: Floats, draws: Draws) -> Longs:
        tokens = np.empty(len(draws.rows), np.int64)
        _native.draw_tokens(
            self._tier,
            self._team,
            logits,
            draws.rows,
            draws.temperatures,
            draws.min_p,
            draws.top_p,
            draws.top_k,
            draws.seeds,
            draws.positions,
            tokens,
        )
        return tokens
