"""Chooses kernels from measured times: the order of sums, and what computes each product.

Nothing here measures or reads a clock: `measure.py` does, and tests plant times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from octavo.backends.native import _native

# Of each class of rows, the number of rows that is measured.
ROWS = (1, 4, 8, 48)
# The prefetch distances in bytes that are tried, the default one first.
DISTANCES = (_native.DEFAULT_AHEAD, 0, 2048, 4096, 16384)
_FEW_DISTANCES = DISTANCES[:2]
# For these rows, on warm panels, the order of bf16 sums decides how fast a product is. With fewer
# rows it waits for memory, whatever the order.
ORDER_ROWS = (8, 96)
# A candidate replaces the default only if its time is at most this share: noise is seldom larger.
_GAIN = 0.95


class Trial(NamedTuple):
    """One product by one kernel, as it is measured."""

    tier: str
    format: str
    rows: int
    ahead: int  # bytes
    is_cold: bool


class Choice(NamedTuple):
    """The kernel for one format and class of rows, with the time that it takes for a panel."""

    row_class: int
    tier: str
    ahead: int
    default_seconds: float  # of the kernel that would have been taken without a measurement
    seconds: float


def has_order(format_: str) -> bool:
    """Return whether the bits of a format's products depend on the order of sums."""
    return bool(_native.multiplies_bf16(getattr(_native.Format, format_)))


def tiers_by_order(tiers: Sequence[str], order_of: Mapping[str, str]) -> dict[str, str]:
    """Return the best tier for each order of sums; tiers are listed the slowest first."""
    return {order_of[tier]: tier for tier in tiers}


def order_trials(tiers: Iterable[str]) -> list[Trial]:
    """Return what is measured to choose between tiers with different orders of sums."""
    return [
        Trial(tier, "BF16", rows, _native.DEFAULT_AHEAD, False)
        for tier in tiers
        for rows in ORDER_ROWS
    ]


def choose_order_tier(tiers: Sequence[str], seconds: Mapping[Trial, float]) -> str:
    """Return the tier that multiplies bf16 numbers fastest; the last one, unless another gains."""
    chosen = tiers[-1]
    most = 1 / _GAIN
    for tier in tiers[:-1]:
        ratios = [
            math.log(seconds[own] / seconds[other])
            for own, other in zip(order_trials([tiers[-1]]), order_trials([tier]), strict=True)
            if math.isfinite(seconds[own]) and math.isfinite(seconds[other])
        ]
        gain = math.exp(sum(ratios) / len(ratios)) if ratios else 1.0
        if gain > most:
            chosen, most = tier, gain
    return chosen


def product_trials(
    format_: str, base: str, tiers: Sequence[str], order_of: Mapping[str, str]
) -> list[Trial]:
    """Return what is measured for one format: tiers of equal bits, distances, cold and warm."""
    others = [tier for tier in tiers[1:] if tier != base]  # the first one is the portable code
    if has_order(format_) or format_ in ("F32", "F16"):
        others = [tier for tier in others if order_of[tier] == order_of[base]]
    trials = []
    for rows in ROWS:
        distances = _FEW_DISTANCES if rows == ROWS[-1] else DISTANCES
        kernels = [(base, ahead) for ahead in distances] + [
            (tier, _native.DEFAULT_AHEAD) for tier in others
        ]
        for tier, ahead in kernels:
            trials += [Trial(tier, format_, rows, ahead, is_cold) for is_cold in (True, False)]
    return trials


def choose_products(trials: Iterable[Trial], seconds: Mapping[Trial, float]) -> list[Choice]:
    """Return a format's choices; none for a class of rows that was not measured.

    Cold panels decide: the weights of nearly all models exceed the caches. What a candidate loses
    on warm panels must be less than what it gains on cold ones.
    """
    trials = list(trials)
    choices = []
    for row_class, rows in enumerate(ROWS):
        cold = [trial for trial in trials if trial.rows == rows and trial.is_cold]
        default = cold[0]
        if not math.isfinite(seconds[default]):
            continue
        best = default
        for trial in cold:
            warm, default_warm = (
                seconds[each._replace(is_cold=False)] for each in (trial, default)
            )
            is_gain = (
                seconds[trial] < _GAIN * seconds[default]
                and seconds[trial] * warm < seconds[default] * default_warm
            )
            if is_gain and seconds[trial] < seconds[best]:
                best = trial
        choices.append(Choice(row_class, best.tier, best.ahead, seconds[default], seconds[best]))
    return choices
