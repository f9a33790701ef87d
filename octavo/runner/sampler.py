"""Sampling: each row's draw depends only on its own logits, parameters, seed and position.

First the request's rules (rules.py) are applied. A greedy request takes the most likely token. For
the others, logits are divided by the temperature, filtered by min-p, top-k and top-p, and the token
with the largest sum of logit and noise is drawn. Rows without rules and filters are computed
together, by elementwise operations; their bits are the same as if each were computed alone. A
backend may have a faster kernel that draws the same tokens for slots without rules.
"""

from __future__ import annotations

import numpy as np

from octavo.backends.base import Draws, Floats, Ints, Longs, SamplingKernel
from octavo.runner import noise
from octavo.runner.filters import survivors
from octavo.runner.rules import SamplingError
from octavo.runner.slots import GREEDY, SPECIAL, WARM, SlotState

NOT_FINITE = (
    "the model gave logits that are not finite (NaN or infinity) for this sequence; "
    "the weights may be damaged, or overflow in this precision"
)

# Elements sampled together, approximately: more would not fit in the cache.
_AT_ONCE = 1 << 16


class Sampler:
    """The sampler of all slots, with or without a backend's kernel."""

    def __init__(self, state: SlotState, kernel: SamplingKernel | None = None) -> None:
        self._state = state
        self._kernel = kernel
        self._spread = noise.spread(np.arange(state.vocabulary))
        self._draws = Draws(
            temperatures=state.temperature,
            min_p=state.min_p,
            top_p=state.top_p,
            top_k=state.top_k,
            seeds=state.seeds,
            num_prompt=state.num_prompt,
            num_known=state.num_known,
        )

    def draw(
        self, logits: Floats, slots: Longs, rows: Longs | None = None
    ) -> tuple[Ints, dict[int, str]]:
        """Draw a token for each slot from its row of the logits; return also the failures.

        Without `rows`, the i-th slot has the i-th row.
        """
        if rows is None:
            rows = np.arange(len(slots))
        if self._kernel is None:
            return self._draw_here(logits[rows], slots)
        if not self._state.rules:
            return self._draw_by_kernel(self._kernel, logits, slots, rows)
        ruled = np.array([slot in self._state.rules for slot in slots.tolist()])
        tokens = np.zeros(len(slots), np.int32)
        plain, others = ~ruled, np.flatnonzero(ruled)
        tokens[plain], failures = self._draw_by_kernel(
            self._kernel, logits, slots[plain], rows[plain]
        )
        tokens[others], more = self._draw_here(logits[rows[others]], slots[others])
        return tokens, failures | more

    def append(self, slots: Longs, tokens: Ints) -> None:
        """Append the drawn tokens to the sequences of these (different) slots."""
        state = self._state
        if self._kernel is None or state.rules:
            state.append(slots, tokens)
        else:
            self._kernel.append(slots, tokens, state.tokens, state.num_known)

    def _draw_by_kernel(
        self, kernel: SamplingKernel, logits: Floats, slots: Longs, rows: Longs
    ) -> tuple[Ints, dict[int, str]]:
        tokens, is_whole = kernel.draw(logits, rows, slots, self._draws)
        if is_whole:
            return tokens, {}
        failures = dict.fromkeys(slots[tokens < 0].tolist(), NOT_FINITE)
        return np.maximum(tokens, 0), failures

    def _draw_here(self, logits: Floats, slots: Longs) -> tuple[Ints, dict[int, str]]:
        failures: dict[int, str] = {}
        finite = np.asarray(np.isfinite(logits).all(axis=1))
        if not finite.all():
            logits = np.where(finite[:, None], logits, np.float32(0))
            failures = dict.fromkeys(slots[~finite].tolist(), NOT_FINITE)
        kinds = self._state.kind[slots]
        if not kinds.any():
            return logits.argmax(axis=1).astype(np.int32), failures
        tokens = np.zeros(len(slots), np.int32)
        greedy = np.flatnonzero(kinds == GREEDY)
        if len(greedy):
            tokens[greedy] = logits[greedy].argmax(axis=1)
        warm = np.flatnonzero(kinds == WARM)
        step = max(1, _AT_ONCE // self._state.vocabulary)
        for begin in range(0, len(warm), step):
            part = warm[begin : begin + step]
            tokens[part] = self._draw_warm(logits[part], slots[part])
        for index in np.flatnonzero(kinds == SPECIAL).tolist():
            slot = int(slots[index])
            try:
                tokens[index] = self._draw_special(logits[index], slot)
            except SamplingError as error:
                failures.setdefault(slot, str(error))
        return tokens, failures

    def _draw_warm(self, logits: Floats, slots: Longs) -> Longs:
        scores = logits.astype(np.float64)
        scores /= self._state.temperature[slots][:, None]
        scores += noise.gumbel([self._keys(slot) for slot in slots.tolist()], self._spread)
        best: Longs = scores.argmax(axis=1)
        return best

    def _draw_special(self, row: Floats, slot: int) -> int:
        state = self._state
        rules = state.rules.get(slot)
        if rules is not None:
            row = rules.apply(row, state.prompt(slot), state.output(slot))
        temperature = state.temperature[slot]
        if temperature == 0.0:
            return int(row.argmax())
        scores = row.astype(np.float64) / temperature
        keys = [self._keys(slot)]
        if not state.cuts[slot]:
            return int((scores + noise.gumbel(keys, self._spread)[0]).argmax())
        ids = survivors(
            scores, float(state.min_p[slot]), int(state.top_k[slot]), float(state.top_p[slot])
        )
        gumbel = noise.gumbel(keys, self._spread[ids])[0]
        return int(ids[(scores[ids] + gumbel).argmax()])

    def _keys(self, slot: int) -> tuple[int, int]:
        state = self._state
        position = int(state.num_known[slot] - state.num_prompt[slot])
        return noise.keys(int(state.seeds[slot]), position)
