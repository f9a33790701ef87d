"""Native sampling and log-probabilities: faster versions of what octavo/runner does in numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from octavo.backends.base import Doubles, Floats, Ints, Longs
from octavo.backends.native import _native


@dataclass(frozen=True, slots=True)
class SlotArrays:
    """The sampling parameters of each slot, in arrays that the runner changes."""

    temperatures: Doubles  # 0: greedy
    min_p: Doubles  # 0: none
    top_p: Doubles  # 1: none
    top_k: Longs  # 0 or less: none
    seeds: Longs
    num_prompt: Longs
    num_known: Longs  # tokens of the prompt and of the output so far


class RowLogprobs(NamedTuple):
    """Log-probabilities of some tokens of each row of logits."""

    token_ids: Ints  # [rows, 1 + count]: the given token, then the most likely ones
    logprobs: Floats  # [rows, 1 + count]
    ranks: Longs  # [rows]: of the given token; 0 where a logit is not finite


class NativeSampling:
    """The team's kernels for rows of logits."""

    def __init__(self, tier: str, team: _native.Team) -> None:
        self._tier = tier
        self._team = team

    def draw(
        self, logits: Floats, rows: Longs, slots: Longs, draws: SlotArrays
    ) -> tuple[Ints, bool]:
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
