"""One vector from a prompt's hidden states, independent of the prompt's chunks.

A mean is summed position by position in float64, so that its bits depend on the prompt alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.backends.base import Floats
from octavo.core.sampling_params import Pooling


class Pool:
    """The pooling of one sequence's prompt, and its sum so far."""

    def __init__(self, pooling: Pooling, num_prompt: int) -> None:
        first, last = 0, num_prompt - 1
        self._positions = {
            "last": range(last, last + 1),
            "cls": range(first, first + 1),
            "mean": range(num_prompt),
        }[pooling]
        self._num_added = 0
        self._sum: NDArray[np.float64] | None = None

    def wanted(self, start: int, count: int) -> range:
        """Return the positions of a chunk whose hidden states are needed."""
        first = max(start, self._positions.start)
        return range(first, max(first, min(start + count, self._positions.stop)))

    def add(self, states: Floats) -> Floats | None:
        """Add the states of the next positions; return the vector once all were added."""
        if self._sum is None:
            self._sum = np.zeros(states.shape[1], np.float64)
        for state in states:
            self._sum += state
        self._num_added += len(states)
        if self._num_added < len(self._positions):
            return None
        return (self._sum / self._num_added).astype(np.float32)
