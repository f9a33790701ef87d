"""Calls of user-written logits processors, which may do anything and fail only their request."""

from __future__ import annotations

import numpy as np

from octavo.backends.base import Floats, Ints
from octavo.backends.step import Processor


class SamplingError(ValueError):
    """A failure of one sequence, with the message for its request; others continue."""


def call_processor(processor: Processor, prompt: Ints, output: Ints, row: Floats) -> Floats:
    """Return the row that a user's function makes of `row`; raise SamplingError if it fails."""
    name = getattr(processor, "__name__", type(processor).__name__)
    size = row.shape
    try:
        result = np.array(processor(prompt.copy(), output.copy(), row), np.float32)
    except Exception as error:
        raise SamplingError(
            f"logits processor {name} failed: {type(error).__name__}: {error}"
        ) from error
    if result.shape != size:
        raise SamplingError(
            f"logits processor {name} returned shape {result.shape}; it must return {size}"
        )
    if np.isnan(result).any() or (result == np.inf).any():
        raise SamplingError(
            f"logits processor {name} returned NaN or infinity; it may return finite numbers, "
            "and -inf for tokens that must not be chosen"
        )
    return result
