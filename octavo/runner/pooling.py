"""One vector of a prompt's hidden states, whatever chunks they come in.

A mean is added up position by position in float64, so that its bits depend on the prompt alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.backends.base import Floats
from octavo.core.sampling_params import Pooling


class Pool:
    """What one sequence's request wants of its prompt, and what has come of it."""

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
        """The positions of a chunk whose hidden states are wanted."""
        first = max(start, self._positions.start)
        return range(first, max(first, min(start + count, self._positions.stop)))

    def add(self, states: Floats) -> Floats | None:
        """Take the states of the next wanted positions; the vector, with the last of them."""
        if self._sum is None:
            self._sum = np.zeros(states.shape[1], np.float64)
        for state in states:
            self._sum += state
        self._num_added += len(states)
        if self._num_added < len(self._positions):
            return None
        return (self._sum / self._num_added).astype(np.float32)
