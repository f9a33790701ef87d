"""Chooses the instruction set of the kernels: the requested one, or the best."""

from __future__ import annotations

from octavo.backends.native import _native


def choose_tier(asked: str) -> str:
    """Return the requested instruction set, for "" the best; raise ValueError if it cannot run."""
    tiers: list[str] = _native.tiers()
    if asked and asked not in tiers:
        raise ValueError(
            f"the instruction set {asked!r} is not one of those that this processor runs: choose "
            f"one of {', '.join(tiers)}, or none (OCTAVO_CPU_ISA unset) for the best"
        )
    return asked or tiers[-1]
