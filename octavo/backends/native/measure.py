"""Measures kernels on this machine and keeps the results: the engine's calibration.

The order of bf16 sums, on which bits depend, is measured before an engine's first step, in a few
milliseconds. Which kernels of equal bits compute each product is measured while the engine has no
work, so that it delays nothing, and takes effect when it is known.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from octavo.backends.native import _native
from octavo.backends.native.kernel_choice import (
    Choice,
    Trial,
    choose_order_tier,
    choose_products,
    order_trials,
    product_trials,
    tiers_by_order,
)
from octavo.backends.native.measured_file import MeasuredFile, in_us
from octavo.backends.native.tiers import orders

_log = logging.getLogger(__name__)

_ORDER_SECONDS = 0.004
_PRODUCT_SECONDS = 0.28  # together with _ORDER_SECONDS at most 0.3 s of one thread

Measure = Callable[[Sequence[Trial], float], "_native.Trials"]


def native_trials(trials: Sequence[Trial], seconds: float) -> _native.Trials:
    """Return the trials for the native module, not yet begun."""
    described = [
        (trial.tier, getattr(_native.Format, trial.format), trial.rows, trial.ahead, trial.is_cold)
        for trial in trials
    ]
    return _native.Trials(described, seconds)


def measured_tier(file: MeasuredFile | None, measure: Measure = native_trials) -> str:
    """Return the tier whose order of sums is fastest here: the measured one, or measure it."""
    order_of = orders()
    best = tiers_by_order(_native.tiers(), order_of)
    candidates = list(best.values())
    if len(candidates) == 1:
        return candidates[0]
    known = file.order if file is not None else None
    if known in best:
        return best[known]
    trials = order_trials(candidates)
    running = measure(trials, _ORDER_SECONDS)
    running.run()
    seconds = dict(zip(trials, running.best(), strict=True))
    tier = choose_order_tier(candidates, seconds)
    why = "the newest here: the machine was too busy to measure any"
    if any(math.isfinite(each) for each in seconds.values()):
        times = (f"{each.tier} {each.rows} rows {in_us(seconds[each])}" for each in trials)
        why = f"the fastest here: {', '.join(times)}"
    _log.info("bf16 products are added up in the order %r (%s), %s", order_of[tier], tier, why)
    if file is not None:
        file.note_order(order_of[tier], seconds)
    return tier


class ProductCalibration:
    """The measurement of a model's products, and its results as far as they are known."""

    def __init__(
        self,
        formats: Iterable[str],
        base: str,
        file: MeasuredFile | None,
        measure: Measure = native_trials,
    ) -> None:
        self._file = file
        self._base = base
        order_of = orders()
        known: Mapping[str, list[Choice]] = {}
        if file is not None:
            known = file.products(base, order_of)
        wanted = list(dict.fromkeys(formats))
        self.choices = {each: known[each] for each in wanted if each in known}
        self._trials = {
            each: product_trials(each, base, _native.tiers(), order_of)
            for each in wanted
            if each not in known
        }
        flat = [trial for trials in self._trials.values() for trial in trials]
        self._running = measure(flat, _PRODUCT_SECONDS) if flat else None
        self._flat = flat

    def begin(self, program: _native.Program) -> None:
        """Begin to measure what is not known, in a thread that waits while the program runs."""
        if self._running is not None:
            self._running.begin(program)

    def take(self) -> bool:
        """Take the results, if they are there; return whether nothing is left to be measured."""
        running = self._running
        if running is None:
            return True
        if not running.done():
            return False
        seconds = dict(zip(self._flat, running.best(), strict=True))
        for format_, trials in self._trials.items():
            choices = choose_products(trials, seconds)
            self.choices[format_] = choices
            if self._file is not None and choices:
                self._file.note_products(self._base, format_, choices)
        self._running = None
        return True
