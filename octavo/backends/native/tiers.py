"""Chooses the instruction set of the kernels, and refuses far too many threads for them."""

from __future__ import annotations

import logging
from functools import cache

from octavo.backends.native import _native
from octavo.observe.machine import num_cores

log = logging.getLogger(__name__)

# A few more threads than processors are useful for experiments; many more are a mistake.
_MOST_THREADS_A_CORE = 4


def orders() -> dict[str, str]:
    """Return the order of bf16 sums of each tier that this processor runs, the slowest first."""
    return {tier: _native.accumulation_order(tier) for tier in _native.tiers()}


def choose_tier(asked: str, order: str = "", *, asked_by: str = "cpu_isa") -> str:
    """Return the requested instruction set, or the best one (with this order of sums, if any).

    Raise ValueError if there is none; `asked_by` is the setting that it names.
    """
    _warn_of_dropped(tuple(_native.dropped_tiers().items()))
    order_of = orders()
    if asked and asked not in order_of:
        raise ValueError(
            f"{asked_by}={asked!r} is none of the instruction sets that this processor runs: "
            f"choose one of {', '.join(order_of)}, or leave it out for the best"
        )
    if order and order not in order_of.values():
        raise ValueError(
            f"accumulation_order={order!r}: no instruction set of this processor adds products up "
            f"in that order; there are {', '.join(dict.fromkeys(order_of.values()))}, and every "
            "processor has fma"
        )
    if asked and order and order_of[asked] != order:
        raise ValueError(
            f"{asked_by}={asked!r} adds products up in the order {order_of[asked]!r}, and "
            f"accumulation_order={order!r} is wanted: leave one of them out"
        )
    if asked:
        return asked
    return [tier for tier in order_of if order in ("", order_of[tier])][-1]


@cache  # an engine asks more than once
def _warn_of_dropped(tiers: tuple[tuple[str, str], ...]) -> None:
    for name, reason in tiers:
        text = "the instruction set %s is not used, although the processor has it: %s"
        log.warning(text, name, reason)


def check_threads(num_threads: int, asked_by: str) -> None:
    """Raise ValueError if so many threads would mostly wait for each other; 0 is the default.

    `asked_by` is the setting that it names.
    """
    cores, _ = num_cores()
    if num_threads > _MOST_THREADS_A_CORE * cores:
        raise ValueError(
            f"{asked_by}={num_threads} is far more than the {cores} processors that this process "
            "may use: threads would wait for each other in every step; leave it out, or ask for "
            f"{cores} at most"
        )
