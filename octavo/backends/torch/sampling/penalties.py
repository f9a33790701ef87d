"""Penalties for tokens that a sequence has seen, with counts that follow its output."""

from __future__ import annotations

import numpy as np

from octavo.backends.base import Floats
from octavo.backends.step import SlotSampling


class Penalties:
    """One sequence's counts; memory and time grow with its distinct tokens, not the vocabulary."""

    __slots__ = ("_counts", "_frequency", "_ids", "_places", "_presence", "_repetition")

    def __init__(self, sampling: SlotSampling) -> None:
        prompt, output = np.split(sampling.tokens, [sampling.num_prompt])
        self._repetition = np.float32(sampling.repetition)
        self._presence = np.float32(sampling.presence)
        self._frequency = np.float32(sampling.frequency)
        # The prompt counts only for repetition, which asks whether a token was seen at all.
        ids = np.unique(prompt) if self._repetition != 1.0 else prompt[:0]
        self._places = {token: place for place, token in enumerate(ids.tolist())}
        self._ids = ids.astype(np.int64)
        self._counts = np.zeros(len(ids), np.float32)
        for token in output.tolist():
            self.add(token)

    def add(self, token: int) -> None:
        """Count one more token of the output."""
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._ids):
            more = max(16, place)
            self._ids = np.concatenate((self._ids, np.zeros(more, np.int64)))
            self._counts = np.concatenate((self._counts, np.zeros(more, np.float32)))
        self._ids[place] = token
        self._counts[place] += 1

    def apply(self, row: Floats) -> None:
        """Lower the logits of seen tokens in place: repetition, then frequency and presence."""
        seen = len(self._places)
        ids, counts = self._ids[:seen], self._counts[:seen]
        values = row[ids]
        if self._repetition != 1.0:
            factor = self._repetition
            values = np.where(values > 0, values / factor, values * factor)
        values -= self._frequency * counts
        values -= self._presence * (counts > 0)
        row[ids] = values
