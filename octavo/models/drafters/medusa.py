"""Medusa: heads that each propose one token, all from the same last hidden state of the model.

The token drawn from that state is known. The first head foresees the token behind it, the second
the next, and so on. Each is a few residual layers and a projection to the vocabulary. No head reads
a token, so none keeps keys and values; a chain of drafts has one token of each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from octavo.layers import Batch, LastStates, Linear, Model, ModelSpec, Module, Value, WeightSource
from octavo.loader import Checkpoint
from octavo.models.config_reader import Config, ConfigurationError
from octavo.models.drafters.reading import check_target
from octavo.models.drafters.small_vocabulary import TOKEN_MAP, read_token_map
from octavo.models.weights import Weights

MOST_HEADS, MOST_LAYERS = 64, 64  # of any file; published ones have up to 5 heads, of 1 layer
_PREFIXES = ("", "medusa_heads.", "medusa_head.")
# How files name a head's layers and projection; the first is that of FasterDecoding, `{}` a layer.
_PUBLISHED, _OF_VLLM = ("*.{}.linear", "*.{}"), ("blocks.*.layers.{}", "lm_heads.*")
_NUMBER_OF_HEADS = ("num_heads", "medusa_num_heads")
_NUMBER_OF_LAYERS = ("num_hidden_layers", "medusa_num_layers")


class ResidualLayers(Module):
    """Layers that each add an activated projection of what they read."""

    def __init__(self, width: int, count: int, *, has_bias: bool) -> None:
        self.count = count
        for number in range(count):  # with names of their own: a number in a path is a head's
            setattr(self, f"layer_{number}", Linear(width, width, bias=has_bias))

    def __call__(self, x: Value) -> Value:
        for number in range(self.count):
            layer = getattr(self, f"layer_{number}")
            x = x + self.ops.activation(layer(x), "silu")
        return x


class MedusaHead(Model):
    """One head, which is a program of its own; each of its rows is a state."""

    features: LastStates

    def __init__(
        self,
        spec: ModelSpec,
        states: LastStates,
        layers: int,
        tokens: NDArray[np.int64] | None,
        *,
        has_bias: bool,
    ) -> None:
        self.spec, self.features = spec, states
        self.layers = ResidualLayers(spec.hidden, layers, has_bias=has_bias)
        self.tokens = tokens  # the model's ids of its own; None: they are the same
        self.head = Linear(spec.hidden, spec.vocabulary if tokens is None else len(tokens))

    def hidden(self, batch: Batch) -> Value:
        return self.features()

    def logits(self, hidden: Value) -> Value:
        assert self.head is not None
        scores = self.head(self.layers(hidden))
        if self.tokens is None:
            return scores
        return self.ops.spread(scores, self.tokens, self.spec.vocabulary)


class Medusa(Model):
    """Heads in the order of the tokens that they foresee."""

    ignored = (TOKEN_MAP,)
    renames = tuple([(prefix, "") for prefix in _PREFIXES[1:]])
    features: LastStates

    def __init__(self, spec: ModelSpec, heads: list[MedusaHead], names: Mapping[str, str]) -> None:
        self.spec, self.heads, self._names = spec, heads, names
        self.features = heads[0].features

    def weights(self) -> Mapping[str, WeightSource]:
        return self._names

    @property
    def programs(self) -> tuple[Model, ...]:
        return (*self.heads,)


def is_medusa(names: Collection[str]) -> bool:
    """Return whether a file's tensors are those of heads."""
    first = ("blocks.0.layers.0.weight", "0.0.linear.weight")
    return any(prefix + name in names for prefix in _PREFIXES for name in first)


def declare(
    config: Config, target: ModelSpec, weights: Weights, checkpoint: Checkpoint
) -> tuple[Medusa, Weights]:
    """Declare the heads of a checkpoint, and return its weights."""
    check_target(config, target)
    shapes = {_plain(name): shape for name, shape in weights.shapes().items()}
    is_of_vllm = any(name.startswith(("blocks.", "lm_heads.")) for name in shapes)
    layer, head = _OF_VLLM if is_of_vllm else _PUBLISHED
    num_layers = _stated(config, _NUMBER_OF_LAYERS, 1, MOST_LAYERS)
    head = head.format(num_layers)
    names = {f"heads.*.layers.layer_{number}": layer.format(number) for number in range(num_layers)}
    names["heads.*.head"] = head
    found = _count(shapes, f"{head}.weight")
    count = _stated(config, _NUMBER_OF_HEADS, found or 1, MOST_HEADS)
    has_bias = f"{layer.format(0)}.bias".replace("*", "0") in shapes
    states = LastStates(target.hidden)
    num_drafted = config.positive("truncated_vocab_size", target.vocabulary)
    tokens = read_token_map(checkpoint, num_drafted, target.vocabulary)
    heads = [
        MedusaHead(target, states, num_layers, tokens, has_bias=has_bias)
        for _ in range(max(count, min(found, MOST_HEADS)))
    ]
    return Medusa(target, heads, names), weights


def _plain(name: str) -> str:
    """Return the name of a tensor without its prefix."""
    return next((name.removeprefix(each) for each in _PREFIXES[1:] if name.startswith(each)), name)


def _count(shapes: Collection[str], name: str) -> int:
    """Return how many heads a file has, without a gap; `*` is a head's number in the name."""
    count = 0
    while name.replace("*", str(count)) in shapes:
        count += 1
    return count


def _stated(config: Config, keys: tuple[str, ...], default: int, most: int) -> int:
    """Read a number under the first of these keys that is there."""
    key = next(filter(config.has, keys), keys[0])
    number = config.positive(key, default)
    if number > most:
        raise ConfigurationError(
            f"{config.name_of(key)} is {number:,}, and at most {most} are read"
        )
    return number
