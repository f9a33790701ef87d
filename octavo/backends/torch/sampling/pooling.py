"""The mean of a prompt's hidden states, independent of the prompt's chunks.

It is summed position by position in float64, so that its bits depend on the prompt alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.backends.base import Floats


class PooledSum:
    """The sum of the states added so far."""

    def __init__(self) -> None:
        self._num_added = 0
        self._sum: NDArray[np.float64] | None = None

    def add(self, states: Floats) -> None:
        """Add the states of the next positions."""
        if self._sum is None:
            self._sum = np.zeros(states.shape[1], np.float64)
        for state in states:
            self._sum += state
        self._num_added += len(states)

    @property
    def mean(self) -> Floats:
        assert self._sum is not None, "no states were added"
        return (self._sum / self._num_added).astype(np.float32)
