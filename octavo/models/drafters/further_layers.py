"""The layers of a drafter behind its first one, which are as those of most models."""

from __future__ import annotations

from octavo.layers import (
    Attention,
    Batch,
    ModelSpec,
    Module,
    Value,
    WeightSource,
    standard_block,
    standard_weights,
)

FIRST_POSITION = 1  # of a drafter's rows: that of the text's first token has nothing to read
_BLOCKS, _STORED = "blocks.*.", "model.layers.*."


class FurtherLayers(Module):
    """Blocks with a norm before attention and one before the MLP; there may be none."""

    def __init__(self, spec: ModelSpec) -> None:
        self.names = [_name(number) for number in range(1, spec.layers)]
        for number, name in enumerate(self.names, 1):
            block = standard_block(spec, number)
            skip_first(block)
            setattr(self, name, block)

    def __call__(self, x: Value, residual: Value, batch: Batch) -> tuple[Value, Value]:
        for name in self.names:
            x, residual = getattr(self, name)(x, residual, batch)
        return x, residual


def skip_first(layers: Module) -> None:
    """Let no row of these layers read that of the first position."""
    for _, layer in layers.walk():
        if isinstance(layer, Attention):
            layer.skipped = FIRST_POSITION


def further_weights(spec: ModelSpec, path: str) -> dict[str, WeightSource]:
    """Return the names of the tensors of layers 1, 2, …, which are at `path` in a drafter."""
    found: dict[str, WeightSource] = {}
    for number in range(1, spec.layers):
        for layer, source in standard_weights(spec).items():
            if layer.startswith(_BLOCKS):
                sources = source if isinstance(source, tuple) else (source,)
                names = [f"{each}".replace(_STORED, f"layers.{number}.") for each in sources]
                inner = layer.removeprefix(_BLOCKS)
                found[f"{path}.{_name(number)}.{inner}"] = (*names,)
    return found


def _name(number: int) -> str:
    return f"layer_{number}"  # a number by itself would be a part that may vary
