"""Penalties for tokens that a sequence has seen, with counts that follow its output."""

from __future__ import annotations

from collections import Counter, deque

import numpy as np
from msgspec import structs

from octavo.backends.base import Floats, Longs
from octavo.backends.step import NO_ROWS, SlotSampling


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

    def lowered(self) -> tuple[Longs, Floats, Floats]:
        """Return the seen tokens, and by how much frequency and presence lower each."""
        seen = len(self._places)
        counts = self._counts[:seen]
        return self._ids[:seen], self._frequency * counts, self._presence * (counts > 0)

    def apply(self, row: Floats) -> None:
        """Lower the logits of seen tokens in place: repetition, then frequency and presence."""
        ids, by_count, by_presence = self.lowered()
        values = row[ids]
        if self._repetition != 1.0:
            factor = self._repetition
            values = np.where(values > 0, values / factor, values * factor)
        values -= by_count
        values -= by_presence
        row[ids] = values


class WindowPenalties(Penalties):
    """Counts of the last tokens alone: what leaves their window is forgotten."""

    __slots__ = ("_num_prompt", "_seen", "_size", "_window")

    def __init__(self, sampling: SlotSampling) -> None:
        super().__init__(structs.replace(sampling, tokens=NO_ROWS, num_prompt=0))
        self._size = sampling.penalty_window
        self._window: deque[int] = deque()
        self._seen: Counter[int] = Counter()  # of prompt and output
        prompt, output = np.split(sampling.tokens, [sampling.num_prompt])
        self._num_prompt = 0  # leading tokens of the window, which are the prompt's
        for token in prompt[len(prompt) - min(self._size, len(prompt)) :].tolist():
            self._enter(token, 0)
            self._num_prompt += 1
        for token in output.tolist():
            self.add(token)

    def add(self, token: int) -> None:
        """Count one more token of the output, and forget the oldest one."""
        self._enter(token, 1)
        if len(self._window) <= self._size:
            return
        oldest = self._window.popleft()
        self._seen[oldest] -= 1
        if self._num_prompt:
            self._num_prompt -= 1
        else:
            self._counts[self._places[oldest]] -= 1
        if not self._seen[oldest]:
            self._forget(oldest)

    def _enter(self, token: int, count: int) -> None:
        """Put a token at the window's end; the prompt's count for repetition alone."""
        super().add(token)
        self._counts[self._places[token]] += count - 1
        self._window.append(token)
        self._seen[token] += 1

    def _forget(self, token: int) -> None:
        """Put the last token's count in the place of this one's."""
        place, last = self._places.pop(token), len(self._places)
        moved = int(self._ids[last])
        if moved != token:
            self._places[moved] = place
        self._ids[place], self._counts[place] = moved, self._counts[last]
        self._counts[last] = 0
