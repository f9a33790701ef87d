"""Weighs an opened model: its tensors by storage type, and what they come to once they are bound.

Only headers are read. What is held can be weighed as well, to be compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from octavo.layers import CausalLM
from octavo.models.build import find_needs
from octavo.models.load import OpenedModel
from octavo.models.weights import RenamedWeights, Weights
from octavo.observe.memory_bill import Stored, by_type


def stored(opened: OpenedModel) -> tuple[Stored, ...]:
    """The checkpoint's tensors."""
    infos = opened.checkpoint.tensors.values()
    return by_type([(info.type.name, info.num_bytes) for info in infos])


def num_elements(opened: OpenedModel) -> Iterator[int]:
    """Of each tensor that a layer will hold."""
    weights: Weights = opened.weights
    if opened.model.renames:
        weights = RenamedWeights(weights, opened.model.renames)
    for need in find_needs(opened.model, weights.shapes()):
        yield math.prod(need.declared.shape)


def held_bytes(model: CausalLM) -> int | None:
    """What a bound model's tensors take; None if the backend's values do not tell."""
    values = {}
    for _, module in model.walk():
        for name in module.tensors():
            value = getattr(module, name, None)
            if value is not None:  # the same value in two places, as a tied head's, is held once
                values[id(value)] = value
    sizes = [getattr(value, "nbytes", None) for value in values.values()]
    known = [int(size) for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None
