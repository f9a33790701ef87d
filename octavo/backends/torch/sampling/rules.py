"""A request's changes of its logits besides temperature and filters.

They are applied in this order: allowed ids, bad words, min_tokens, bias, the request's own
processors, penalties, DRY. Only slots with any of these have a `Rules`; all others are drawn
together. A step's mask, which any slot may have, comes after them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.backends.base import Floats, Ints
from octavo.backends.processors import SamplingError, call_processor
from octavo.backends.step import NO_TOKEN_LEFT, SlotSampling, Words
from octavo.backends.torch.sampling.dry import apply_dry
from octavo.backends.torch.sampling.penalties import Penalties, WindowPenalties


class Rules:
    """One slot's rules, and the counts that follow its output."""

    __slots__ = ("penalties", "sampling")

    def __init__(self, sampling: SlotSampling) -> None:
        self.sampling = sampling
        self.penalties: Penalties | None = None
        if sampling.has_penalties:
            made = WindowPenalties if sampling.penalty_window else Penalties
            self.penalties = made(sampling)

    def add(self, token: int) -> None:
        """Count one more token of the output."""
        if self.penalties is not None:
            self.penalties.add(token)

    def forbidden(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens that bad words and min_tokens forbid next."""
        sampling = self.sampling
        output = tokens[sampling.num_prompt :]
        found = []
        for word in sampling.bad_words:
            *before, last = word
            if len(output) >= len(before) and output[len(output) - len(before) :] == before:
                found.append(last)
        if len(output) < sampling.min_tokens:
            found += sampling.stop_ids.tolist()
        return found

    def apply(self, logits: Floats, tokens: Sequence[int]) -> Floats:
        """Return a new row of logits with the rules applied; `tokens` are all known ones."""
        sampling = self.sampling
        if sampling.allowed is None:
            row = logits.copy()
        else:
            row = np.full_like(logits, -np.inf)
            row[sampling.allowed] = logits[sampling.allowed]
        row[self.forbidden(tokens)] = -np.inf
        row[sampling.bias_ids] += sampling.bias
        if sampling.processors:
            prompt = sampling.tokens[: sampling.num_prompt]
            known: Ints = np.array(tokens[sampling.num_prompt :], np.int32)
            for processor in sampling.processors:
                row = call_processor(processor, prompt, known, row)
        if self.penalties is not None:
            self.penalties.apply(row)
        if sampling.dry is not None:
            apply_dry(sampling.dry, tokens, row)
        return row


def masked(row: Floats, mask: Words) -> Floats:
    """Return a row without the tokens whose bits are 0."""
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(row)]
    return np.where(bits.astype(np.bool_), row, np.float32(-np.inf))


def require_a_token(row: Floats) -> None:
    """Raise SamplingError if a row leaves no token to draw."""
    if row.max() == -np.inf:
        raise SamplingError(NO_TOKEN_LEFT)
