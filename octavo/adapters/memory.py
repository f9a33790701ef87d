"""The memory that adapters may take, from the sizes of the projections that they may change."""

from __future__ import annotations

from octavo.layers import Linear, Model


def num_numbers(model: Model, rank: int) -> int:
    """Return how many numbers an adapter of all projections of the blocks has, at this rank."""
    return rank * sum(
        len(module.parts) * module.inputs + module.outputs
        for _, module in model.walk()
        if isinstance(module, Linear) and module is not model.head
    )
