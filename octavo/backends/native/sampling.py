"""Native sampling and log-probabilities: faster versions of what octavo/runner does in numpy."""

from __future__ import annotations

import numpy as np

from octavo.backends.base import Draws, Floats, Ints, Longs, RowLogprobs
from octavo.backends.native import _native


class NativeSampling:
    """The team's kernels for rows of logits; implements `octavo.backends.base.SamplingKernel`."""

    def __init__(self, tier: str, team: _native.Team) -> None:
        self._tier = tier
        self._team = team

    def draw(self, logits: Floats, rows: Longs, slots: Longs, draws: Draws) -> tuple[Ints, bool]:
        tokens = np.empty(len(rows), np.int32)
        is_whole = _native.draw_tokens(
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
        return tokens, is_whole

    def append(self, slots: Longs, tokens: Ints, known: Ints, num_known: Longs) -> None:
        _native.append_tokens(slots, tokens, known, num_known)

    def row_logprobs(self, logits: Floats, rows: Longs, tokens: Ints, count: int) -> RowLogprobs:
        shape = (len(rows), 1 + count)
        found = RowLogprobs(
            np.empty(shape, np.int32), np.empty(shape, np.float32), np.empty_like(rows)
        )
        _native.tell_of_rows(self._tier, self._team, logits, rows, tokens, *found)
        return found
