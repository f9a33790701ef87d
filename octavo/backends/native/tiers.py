"""Chooses the instruction set of the kernels, and refuses far too many threads for them."""

from __future__ import annotations

import logging

from octavo.backends.native import _native
from octavo.observe.machine import num_cores

log = logging.getLogger(__name__)

# A few more threads than processors are useful for experiments; many more are a mistake.
_MOST_THREADS_A_CORE = 4


def choose_tier(asked: str) -> str:
    """Return the requested instruction set, for "" the best; raise ValueError if it cannot run."""
    tiers: list[str] = _native.tiers()
    for name, reason in _native.dropped_tiers().items():
        text = "the instruction set %s is not used, although the processor has it: %s"
        log.warning(text, name, reason)
    if asked and asked not in tiers:
        raise ValueError(
            f"the instruction set {asked!r} is not one of those that this processor runs: choose "
            f"one of {', '.join(tiers)}, or none (OCTAVO_CPU_ISA unset) for the best"
        )
    return asked or tiers[-1]


def check_threads(num_threads: int) -> None:
    """Raise ValueError if so many threads would mostly wait for each other; 0 is the default."""
    cores, _ = num_cores()
    if num_threads > _MOST_THREADS_A_CORE * cores:
        raise ValueError(
            f"num_threads={num_threads} is far more than the {cores} processors that this process "
            "may use: threads would wait for each other in every step; leave it out, or ask for "
            f"{cores} at most"
        )
