"""Native sampling and log-probabilities: what octavo/runner has in numpy, sooner, by the team."""

from __future__ import annotations

import numpy as np

from octavo.backends.base import Draws, Floats, Longs, Told
from octavo.backends.native import _native


class NativeSampling:
    """Implements `octavo.backends.base.SamplingKernel`."""

    def __init__(self, tier: str, team: _native.Team) -> None:
        self._tier = tier
        self._team = team

    def draw(self, logits: Floats, rows: Longs, slots: Longs, draws: Draws) -> Longs:
        tokens = np.empty(len(rows), np.int64)
        _native.draw_tokens(
            self._tier,
            self._team,
            logits,
            rows,
            slots,
            draws.temperatures,
            draws.min_p,
            draws.top_p,
            draws.top_k,
            draws.seeds,
            draws.num_prompt,
            draws.num_known,
            tokens,
        )
        return tokens

    def tell(self, logits: Floats, rows: Longs, tokens: Longs, count: int) -> Told:
        shape = (len(rows), 1 + count)
        told = Told(np.empty(shape, np.int32), np.empty(shape, np.float32), np.empty_like(rows))
        _native.tell_of_rows(self._tier, self._team, logits, rows, tokens, *told)
        return told
