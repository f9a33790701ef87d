"""What adapters (LoRA) may change in a model, and what is refused of an adapter, in any backend."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from octavo.backends.adapter_weights import AdapterSettings, AdapterWeights, Pair
from octavo.backends.step import NoAdaptersError
from octavo.layers import Linear, Model
from octavo.layers.moe import ExpertMatrices
from octavo.program.listing import Listing
from octavo.program.operands import Adapters
from octavo.program.passes.adapters import add_adapters

_BLOCKS = "blocks."  # the beginning of the paths of what adapters may change


def adapt(listing: Listing, model: Model, settings: AdapterSettings) -> list[Adapters]:
    """Let adapters change the products of a recorded model; return these in their order.

    Raise NoAdaptersError for a target that no adapter can change.
    """
    layers = dict(model.walk())
    targets = settings.targets
    if targets is None:
        targets = tuple(
            path
            for path, layer in layers.items()
            if isinstance(layer, Linear) and path.startswith(_BLOCKS)
        )
    multiplied = {id(i.matrix) for i in listing if i.op == "Gemm"}
    products: list[Adapters] = []
    for path in targets:
        layer = layers.get(path)
        reason = _refusal(path, layer)
        if reason is not None:
            raise NoAdaptersError(f"adapters cannot change {path!r}: {reason}")
        assert isinstance(layer, Linear)
        assert id(layer.weight) in multiplied, path
        parts = tuple(part.rows for part in layer.parts)
        width = len(parts) * settings.max_rank
        products.append(Adapters(path, len(products), layer.inputs, parts, width))
        add_adapters(listing, [(layer.weight, products[-1])])
    return products


def _refusal(path: str, layer: Any) -> str | None:
    """Return why adapters cannot change a layer; None if they can."""
    if layer is None:
        return "the model has no such layer"
    if isinstance(layer, ExpertMatrices):
        return "its experts share one tensor, for which adapters are not computed yet"
    if not isinstance(layer, Linear):
        return f"it is a {type(layer).__name__}, not a projection"
    if not path.startswith(_BLOCKS):
        return "only projections of the blocks, not those before or behind them"
    return None


def check_adapter(
    weights: AdapterWeights, products: Iterable[Adapters], settings: AdapterSettings, model: Model
) -> None:
    """Raise ValueError, with the projection's path, for what cannot be computed of an adapter."""
    known = {product.path: product for product in products}
    layers = dict(model.walk())
    for path, pairs in weights.pairs.items():
        if path not in known:
            reason = _refusal(path, layers.get(path)) or "it is no target of this engine's adapters"
            raise ValueError(f"the adapter cannot change {path!r}: {reason}")
        product = known[path]
        if len(pairs) != len(product.parts):
            raise ValueError(
                f"the adapter has {len(pairs)} parts for {path!r}, which has {len(product.parts)}"
            )
        for number, (pair, outputs) in enumerate(zip(pairs, product.parts, strict=True)):
            if pair is not None:
                _check_pair(pair, outputs, product, settings.max_rank, f"{path!r}, part {number}")


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
