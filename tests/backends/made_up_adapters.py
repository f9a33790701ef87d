"""Adapters with made-up numbers for any model, and what merging one makes of a weight."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.backends.adapter_weights import AdapterWeights, Bias, Pair
from octavo.layers import Linear, Model

_RANKS = (1, 3, 4, 7, 8)
_STEP = 1 / 64  # numbers are multiples, so that every type of floats has them


def is_adapted(model: Model, path: str) -> bool:
    """Return whether adapters may change a projection."""
    return path.startswith("blocks.") or path == "head"


def made_up_adapter(
    model: Model, seed: int, dtype: Any = np.float32, *, some: bool = True
) -> AdapterWeights:
    """Make pairs of mixed ranks and scales; with `some`, not for every part or projection."""
    random = np.random.default_rng(seed)

    def numbers(*shape: int) -> NDArray[Any]:
        return (random.integers(-12, 13, shape) * _STEP).astype(dtype)

    def pair(rows: int, inputs: int) -> Pair:
        rank = int(random.choice(_RANKS))
        return Pair(numbers(rank, inputs), numbers(rows, rank), float(random.choice([0.5, 1, 2])))

    pairs: dict[str, tuple[Pair | None, ...]] = {}
    for path, layer in model.walk():
        if layer is model.embed:
            pairs[path] = (pair(model.embed.hidden, model.embed.vocabulary),)
        if not isinstance(layer, Linear) or not is_adapted(model, path):
            continue
        if some and random.random() < 0.15:
            continue
        pairs[path] = tuple(
            None if some and random.random() < 0.2 else pair(part.rows, layer.inputs)
            for part in layer.parts
        )
    ranks = [len(each.down) for parts in pairs.values() for each in parts if each is not None]
    return AdapterWeights(pairs, max(ranks))


def with_more(model: Model, adapter: AdapterWeights, seed: int) -> AdapterWeights:
    """Return an adapter with magnitudes for some of its pairs, and biases for some parts."""
    random = np.random.default_rng(seed)
    layers = dict(model.walk())

    def numbers(count: int, middle: float) -> NDArray[np.float32]:
        return (middle + random.integers(-12, 13, count) * _STEP).astype(np.float32)

    pairs: dict[str, tuple[Pair | None, ...]] = {}
    biases: dict[str, tuple[Bias | None, ...]] = {}
    for path, parts in adapter.pairs.items():
        layer = layers[path]
        if not isinstance(layer, Linear):
            pairs[path] = parts
            continue
        made: list[Bias | None] = []
        for part in layer.parts:
            own = numbers(part.rows, 0.0) if layer.has_bias and random.random() < 0.5 else None
            added = numbers(part.rows, 0.0) if random.random() < 0.7 else None
            made.append(None if own is None and added is None else Bias(added, own))
        biases[path] = tuple(made)
        pairs[path] = tuple(
            pair._replace(magnitude=numbers(part.rows, 1.0))
            if pair is not None and random.random() < 0.7
            else pair
            for part, pair in zip(layer.parts, parts, strict=True)
        )
    return AdapterWeights(pairs, adapter.rank, biases)


def merged_weight(
    weight: NDArray[np.float32], layer: Linear, pairs: tuple[Pair | None, ...], factor: float
) -> NDArray[np.float32]:
    """Return a weight to which an adapter's products are added, times a factor."""
    made, first = weight.copy(), 0
    for part, pair in zip(layer.parts, pairs, strict=True):
        if pair is not None:
            product = pair.up.astype(np.float32) @ pair.down.astype(np.float32)
            made[first : first + part.rows] += np.float32(pair.scale * factor) * product
        first += part.rows
    return made
