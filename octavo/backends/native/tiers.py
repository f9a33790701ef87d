"""Which of the kernels' instruction sets are used: the best, or what was asked for."""

from __future__ import annotations

from octavo.backends.native import _native


def choose_tier(asked: str) -> str:
    """The instruction set that is meant, "" for the best; ValueError where it cannot run here."""
    tiers: list[str] = _native.tiers()
    if asked and asked not in tiers:
        raise ValueError(
            f"the instruction set {asked!r} is not one that this processor runs: choose one of "
            f"{', '.join(tiers)}, or none (OCTAVO_CPU_ISA unset) for the best"
        )
    return asked or tiers[-1]
