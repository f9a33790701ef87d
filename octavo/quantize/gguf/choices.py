"""The choice of scales and minima of groups, by the least squared error of a few candidates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.quantize.packer import Floats

# Parts of the distance between a group's extremes that all codes together are tried for.
_SPANS = (1.0, 0.95, 0.9, 0.85)


def halves(values: Floats) -> Floats:
    """Round to fp16, as scales are stored; what would be infinite becomes the largest number."""
    return np.clip(values, -65504, 65504).astype(np.float16).astype(np.float32)


def divided(values: Floats, scales: Floats) -> Floats:
    """Divide groups by their scales; by a scale of zero, to zeros."""
    safe = np.where(scales == 0, np.float32(1), scales)
    found = np.divide(values, safe[..., None], dtype=np.float32)
    found[scales == 0] = 0
    return found


def signed_scales(groups: Floats, bits: int, targets: Sequence[float]) -> Floats:
    """Return the scale of each group [..., values], for signed codes of so many bits.

    A candidate brings the value of the largest magnitude, with its sign, to a target; the codes
    that follow fix the best scale, by least squares.
    """
    half = 1 << (bits - 1)
    place = np.abs(groups).argmax(-1)[..., None]
    extreme = np.take_along_axis(groups, place, -1)[..., 0]
    best, gain = np.zeros_like(extreme), np.zeros_like(extreme)
    for target in targets:
        codes = np.clip(np.rint(divided(groups, extreme / np.float32(target))), -half, half - 1)
        product = np.einsum("...i,...i->...", groups, codes)
        squares = np.einsum("...i,...i->...", codes, codes)
        scale = product / np.where(squares == 0, np.float32(1), squares)
        # The squared error is the sum of the squared values minus this.
        found = product * scale
        is_better = found > gain
        np.copyto(best, scale, where=is_better)
        np.copyto(gain, found, where=is_better)
    return best


def scales_and_minima(groups: Floats, bits: int, *, below_zero: bool) -> tuple[Floats, Floats]:
    """Return the scale and the minimum of each group, for unsigned codes of so many bits.

    With `below_zero` no minimum is above zero. Scales are not negative.
    """
    top = np.float32((1 << bits) - 1)
    low, high = groups.min(-1), groups.max(-1)
    if below_zero:
        low = np.minimum(low, 0)
    best_scale, best_minimum = (high - low) / top, low
    least = np.full_like(low, np.inf)
    for span in _SPANS:
        scale, minimum = (high - low) * np.float32(span) / top, low * np.float32(span)
        for _ in range(2):  # the second time with what was fitted to the codes of the first
            codes = np.clip(np.rint(divided(groups - minimum[..., None], scale)), 0, top)
            error = np.square(groups - codes * scale[..., None] - minimum[..., None]).sum(-1)
            is_better = error < least
            np.copyto(best_scale, scale, where=is_better)
            np.copyto(best_minimum, minimum, where=is_better)
            np.copyto(least, error, where=is_better)
            scale, minimum = _fitted(groups, codes, below_zero=below_zero)
    return best_scale, best_minimum


def _fitted(groups: Floats, codes: Floats, *, below_zero: bool) -> tuple[Floats, Floats]:
    """Return the scales and minima of the least squared error for given codes."""
    mean_code, mean_value = codes.mean(-1), groups.mean(-1)
    spread = np.square(codes).mean(-1) - np.square(mean_code)
    together = (codes * groups).mean(-1) - mean_code * mean_value
    scale = np.maximum(together / np.where(spread <= 0, np.float32(1), spread), 0)
    minimum = mean_value - scale * mean_code
    if below_zero:
        above = minimum > 0
        squares = np.square(codes).sum(-1)
        alone = (codes * groups).sum(-1) / np.where(squares == 0, np.float32(1), squares)
        scale, minimum = np.where(above, np.maximum(alone, 0), scale), np.minimum(minimum, 0)
    return scale, minimum
