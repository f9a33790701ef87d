"""The choice of scales: of some candidates, the one whose rounded values are nearest to the own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from octavo.loader.checkpoint import numpy_dtype
from octavo.loader.safetensors import TYPES
from octavo.quantize.packer import Floats

# From values that were divided by a scale to the nearest values that the type has.
Round = Callable[[Floats], Floats]


def peaks(groups: Floats) -> Floats:
    """Return the largest magnitude of each group [groups, values]."""
    largest: Floats = np.maximum(groups.max(-1), -groups.min(-1))
    return largest


def best_scales(
    groups: Floats,
    top: float,
    ratios: Sequence[float],
    nearest: Round,
    importance: Floats | None = None,
) -> Floats:
    """Return for each group the scale of the least squared error.

    A candidate brings the group's peak times a ratio to `top`. What it rounds the values to fixes
    their best scale (by least squares), and that scale the error. `importance`, in the shape of the
    groups, is what each value's squared error counts; None: all alike.
    """
    largest = peaks(groups)
    weighted = groups if importance is None else groups * importance
    best, gain = np.zeros_like(largest), np.full_like(largest, -1.0)
    for ratio in ratios:
        scale = largest * np.float32(ratio / top)
        codes = nearest(groups / positive(scale)[:, None])
        product = np.einsum("gi,gi->g", weighted, codes)
        if importance is None:
            squares = np.einsum("gi,gi->g", codes, codes)
        else:
            squares = np.einsum("gi,gi,gi->g", codes, codes, importance)
        fitted = product / positive(squares)
        # The squared error is the sum of the squared values minus this.
        found = product * fitted
        is_better = found > gain
        np.copyto(best, fitted, where=is_better)
        np.copyto(gain, found, where=is_better)
    return best


def positive(scales: Floats) -> Floats:
    """Return scales by which can be divided: 1 in place of 0, which groups of zeros have."""
    return np.where(scales > 0, scales, np.float32(1))


def stored_scales(scales: Floats, scale_type: str) -> Floats:
    """Return the scales as they are stored: rounded to the type, above 0 and finite."""
    kind = numpy_dtype(TYPES[scale_type])
    limits = FINITE[scale_type]
    return np.clip(scales, *limits).astype(kind).astype(np.float32)


# The smallest and the largest scale of each type. That of F16 is not a normal number: all programs
# widen F16 exactly, while some flush such numbers of the two others to 0.
FINITE: dict[str, tuple[float, float]] = {
    "F32": (2.0**-126, 3.4028234e38),
    "BF16": (2.0**-126, 3.3895314e38),
    "F16": (2.0**-24, 65504.0),
}
