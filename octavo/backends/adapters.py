"""What adapters (LoRA) may change in a model, and what is refused of an adapter, in any backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.backends.adapter_weights import AdapterSettings, AdapterWeights, Bias, Pair
from octavo.backends.step import NoAdaptersError
from octavo.layers import Embedding, Linear, Model
from octavo.layers.moe import ExpertMatrices
from octavo.program.listing import Listing
from octavo.program.operands import Adapters
from octavo.program.passes.adapters import add_adapters

Floats = NDArray[np.float32]
BaseRows = Callable[[int, int], Floats]  # the outputs from one to the one before another

_BLOCKS = "blocks."  # the beginning of the paths of what adapters may change
_FLOATS_AT_ONCE = 1 << 20  # of a weight's rows, while their lengths are computed


def adapt(listing: Listing, model: Model, settings: AdapterSettings) -> list[Adapters]:
    """Let adapters change the products of a recorded model; return these in their order.

    Raise NoAdaptersError for a target that no adapter can change.
    """
    layers: dict[str, Any] = dict(model.walk())
    targets = settings.targets
    if targets is None:
        targets = tuple(
            path for path, layer in layers.items() if _refusal(path, layer, model) is None
        )
    used = {id(i.matrix) for i in listing}
    products: list[Adapters] = []
    for path in targets:
        layer = layers.get(path)
        reason = _refusal(path, layer, model)
        if reason is not None:
            raise NoAdaptersError(f"adapters cannot change {path!r}: {reason}")
        assert layer is not None
        assert id(layer.weight) in used, path
        products.append(_product(path, layer, len(products), settings, model))
        add_adapters(listing, [(layer.weight, products[-1])])
    return products


def _product(
    path: str, layer: Any, number: int, settings: AdapterSettings, model: Model
) -> Adapters:
    most = settings.max_rank
    if isinstance(layer, Embedding):
        sizes = layer.vocabulary, (layer.hidden,)
        return Adapters(path, number, *sizes, most, is_lookup=True, has_wholes=settings.wholes)
    parts = tuple(part.rows for part in layer.parts)
    is_head = layer is model.head and settings.wholes
    return Adapters(path, number, layer.inputs, parts, len(parts) * most, has_wholes=is_head)


def _refusal(path: str, layer: Any, model: Model) -> str | None:
    """Return why adapters cannot change a layer; None if they can."""
    if layer is None:
        return "the model has no such layer"
    if layer is model.embed or layer is model.head:
        return None
    if isinstance(layer, ExpertMatrices):
        return "its experts share one tensor, for which adapters are not computed yet"
    if not isinstance(layer, Linear):
        return f"it is a {type(layer).__name__}, not a projection"
    if not path.startswith(_BLOCKS):
        return "only projections of the blocks and the head, not others before or behind them"
    return None


def check_adapter(
    weights: AdapterWeights, products: Iterable[Adapters], settings: AdapterSettings, model: Model
) -> None:
    """Raise ValueError, with the projection's path, for what cannot be computed of an adapter."""
    known = {product.path: product for product in products}
    layers = dict(model.walk())
    for path in weights.paths:
        if path not in known:
            reason = _refusal(path, layers.get(path), model)
            reason = reason or "it is no target of this engine's adapters"
            raise ValueError(f"the adapter cannot change {path!r}: {reason}")
        product = known[path]
        if path in weights.wholes:
            _check_whole(weights, product)
        none = (None,) * len(product.parts)
        pairs, biases = weights.pairs.get(path, none), weights.biases.get(path, none)
        for parts in (pairs, biases):
            if len(parts) != len(product.parts):
                raise ValueError(
                    f"the adapter has {len(parts)} parts for {path!r}, which has "
                    f"{len(product.parts)}"
                )
        for number, outputs in enumerate(product.parts):
            pair, bias, where = pairs[number], biases[number], f"{path!r}, part {number}"
            if pair is not None:
                _check_pair(pair, outputs, product, settings.max_rank, where)
            if bias is not None:
                _check_bias(bias, outputs, layers[path], product, where)


def _check_pair(pair: Pair, outputs: int, product: Adapters, most: int, where: str) -> None:
    down, up = pair.down.shape, pair.up.shape
    if len(down) != 2 or len(up) != 2 or down[0] != up[1]:
        raise ValueError(f"{where}: matrices {down} and {up} have no rank in common")
    if not 1 <= down[0] <= most:
        raise ValueError(f"{where}: the rank is {down[0]}, and this engine takes 1 to {most}")
    if down[1] != product.inputs or up[0] != outputs:
        raise ValueError(
            f"{where}: matrices {down} and {up} change a projection of {down[1]} inputs and "
            f"{up[0]} outputs; this one has {product.inputs} and {outputs}"
        )
    if pair.magnitude is not None and (product.is_lookup or pair.magnitude.shape != (outputs,)):
        raise ValueError(f"{where}: magnitudes {pair.magnitude.shape} for {outputs} outputs")


def _check_whole(weights: AdapterWeights, product: Adapters) -> None:
    if not product.has_wholes:
        raise ValueError(f"{product.path!r} cannot be an adapter's own in this engine")
    if product.path in weights.pairs or product.path in weights.biases:
        raise ValueError(f"{product.path!r} is an adapter's own, which nothing else changes")
    rows = weights.wholes[product.path].rows
    wanted = (sum(product.parts), product.inputs)
    if product.is_lookup:
        wanted = wanted[::-1]
    if (len(rows), rows.inputs) != wanted:
        raise ValueError(f"{product.path!r}: a matrix of {len(rows)} rows and {rows.inputs} inputs")


def _check_bias(bias: Bias, outputs: int, layer: Any, product: Adapters, where: str) -> None:
    for values in bias:
        if values is not None and (product.is_lookup or values.shape != (outputs,)):
            raise ValueError(f"{where}: a bias {values.shape} for {outputs} outputs")
    if bias.own is not None and not layer.has_bias:
        raise ValueError(f"{where}: a bias in place of one that the model does not have")


class PartChange(NamedTuple):
    """Changes of the sums of one part of a product, beside the addend of a pair."""

    growth: Floats | None  # by which each sum is multiplied, with the pair's product in it
    addend: Floats | None  # to each sum, behind that


def part_changes(
    weights: AdapterWeights, product: Adapters, base_rows: BaseRows, base_bias: Floats | None
) -> list[PartChange]:
    """Return what an adapter does to the sums of a product, part by part.

    `base_rows` gives rows of the layer's weight, as the backend multiplies with them; `base_bias`
    is the layer's bias.
    """
    changes, first = [], 0
    none = (None,) * len(product.parts)
    pairs, biases = weights.pairs.get(product.path, none), weights.biases.get(product.path, none)
    for pair, bias, outputs in zip(pairs, biases, product.parts, strict=True):
        growth = addend = None
        if pair is not None and pair.magnitude is not None:
            growth = _growth(pair, pair.magnitude, base_rows, first)
        if bias is not None:
            addend = np.zeros(outputs, np.float32) if bias.added is None else bias.added
            if bias.own is not None:
                assert base_bias is not None
                addend = addend + (bias.own - base_bias[first : first + outputs])
        changes.append(PartChange(growth, addend))
        first += outputs
    return changes


def _growth(pair: Pair, magnitude: Floats, base_rows: BaseRows, first: int) -> Floats:
    """Return what makes the rows of W + scale · up @ down as long as their magnitudes.

    A row of zeros stays one.
    """
    down = np.asarray(pair.down, np.float32)
    at_once = max(1, _FLOATS_AT_ONCE // down.shape[1])
    lengths = np.empty(len(magnitude), np.float32)
    for begin in range(0, len(lengths), at_once):
        rows = slice(begin, min(begin + at_once, len(lengths)))
        up = np.asarray(pair.up[rows], np.float32) * np.float32(pair.scale)
        changed = base_rows(first + rows.start, first + rows.stop) + up @ down
        lengths[rows] = np.sqrt(np.einsum("ij,ij->i", changed, changed, dtype=np.float64))
    return np.where(lengths > 0, magnitude / np.where(lengths > 0, lengths, 1), 1).astype(
        np.float32
    )
