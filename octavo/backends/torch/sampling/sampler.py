"""Sampling: each row's draw depends only on its own logits, parameters, seed and position.

First the request's rules (rules.py) are applied. A greedy request takes the most likely token. For
the others, logits are divided by the temperature, filtered by min-p, top-k and top-p (or by a chain
of samplers, chain.py), and the token with the largest sum of logit and noise is drawn. Rows without
rules and filters are computed together, by elementwise operations; their bits are the same as if
each were computed alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.backends.base import Floats, Ints, Longs
from octavo.backends.processors import SamplingError
from octavo.backends.step import NOT_FINITE, Words
from octavo.backends.torch.sampling import noise
from octavo.backends.torch.sampling.chain import run_chain
from octavo.backends.torch.sampling.filters import survivors
from octavo.backends.torch.sampling.mirostat import surprise
from octavo.backends.torch.sampling.rules import masked, require_a_token
from octavo.backends.torch.sampling.slot import Slot

# Elements sampled together, approximately: more would not fit in the cache.
_AT_ONCE = 1 << 16


class Sampler:
    """Draws a token for each of some rows of logits."""

    def __init__(self) -> None:
        self._spread = noise.spread(np.zeros(0, np.int64))

    def draw(
        self, logits: Floats, slots: Sequence[Slot], masks: Words | None = None
    ) -> tuple[Ints, dict[int, str]]:
        """Draw a token for each slot from its row; return also the failures, by row.

        The token of a failed row is 0.
        """
        if len(self._spread) != logits.shape[1]:
            self._spread = noise.spread(np.arange(logits.shape[1]))
        finite = np.isfinite(logits).all(axis=1)
        failures = dict.fromkeys(np.flatnonzero(~finite).tolist(), NOT_FINITE)
        tokens = np.zeros(len(slots), np.int32)
        greedy, warm, others = [], [], []
        for row, slot in enumerate(slots):
            if row in failures:
                continue
            if masks is not None or not slot.is_plain:
                others.append(row)
            elif slot.sampling.temperature == 0.0:
                greedy.append(row)
            else:
                warm.append(row)
        if greedy:
            tokens[greedy] = logits[greedy].argmax(axis=1)
        step = max(1, _AT_ONCE // logits.shape[1])
        for begin in range(0, len(warm), step):
            part = warm[begin : begin + step]
            tokens[part] = self._draw_warm(logits[part], [slots[row] for row in part])
        for row in others:
            mask = None if masks is None else masks[row]
            try:
                tokens[row] = self._draw_alone(logits[row], slots[row], mask)
            except SamplingError as error:
                failures[row] = str(error)
        return tokens, failures

    def _draw_warm(self, logits: Floats, slots: Sequence[Slot]) -> Longs:
        scores = logits.astype(np.float64)
        scores /= np.array([slot.sampling.temperature for slot in slots])[:, None]
        scores += noise.gumbel([slot.keys() for slot in slots], self._spread)
        best: Longs = scores.argmax(axis=1)
        return best

    def _draw_alone(self, row: Floats, slot: Slot, mask: Words | None) -> int:
        sampling = slot.sampling
        if slot.rules is not None:
            row = slot.rules.apply(row, slot.tokens)
        if mask is not None:
            row = masked(row, mask)
        require_a_token(row)
        if sampling.temperature == 0.0:
            return int(row.argmax())
        keys = [slot.keys()]
        if sampling.chain:
            left = run_chain(row, sampling.chain, keys[0], slot.mu)
            gumbel = noise.gumbel(keys, self._spread[left.ids])[0]
            place = int((left.scores + gumbel).argmax())
            if sampling.mirostat is not None:
                slot.surprise = surprise(left.scores, place)
            return int(left.ids[place])
        scores = row.astype(np.float64) / sampling.temperature
        if not sampling.has_filters:
            return int((scores + noise.gumbel(keys, self._spread)[0]).argmax())
        ids = survivors(scores, sampling.min_p, sampling.top_k, sampling.top_p)
        gumbel = noise.gumbel(keys, self._spread[ids])[0]
        return int(ids[(scores[ids] + gumbel).argmax()])
