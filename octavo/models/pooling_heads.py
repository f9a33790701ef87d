"""The parts of a model behind pooling: dense layers of embeddings, and classifiers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import Struct

from octavo.backends.base import Floats
from octavo.loader.errors import TensorMismatchError
from octavo.loader.safetensors_shards import open_shards
from octavo.models.checkpoint_weights import CheckpointWeights
from octavo.models.sentence_files import DenseLayer
from octavo.models.weights import Weights

Function = Callable[[Floats], Floats]


class Layer(Struct, frozen=True, eq=False):
    """A product, what follows it, and a norm."""

    weight: Floats  # [outputs, inputs]
    bias: Floats | None
    activation: str = ""
    norm: tuple[Floats, Floats | None, float] | None = None  # weight, bias, epsilon

    def __call__(self, x: Floats) -> Floats:
        # Not a product of a library, whose sums may depend on the number of rows and threads.
        y = np.stack([np.einsum("oi,i->o", self.weight, row) for row in x])
        if self.bias is not None:
            y = y + self.bias
        y = ACTIVATIONS[self.activation](y)
        return y if self.norm is None else _normalised(y, *self.norm)


class PoolingHead(Struct, frozen=True, eq=False):
    """The layers behind pooling, applied to each vector by itself."""

    layers: Sequence[Layer]

    @property
    def width(self) -> int:
        """The numbers of a result."""
        return len(self.layers[-1].weight)

    def __call__(self, vectors: Floats) -> Floats:
        """Apply the layers to each of the vectors [count, width]."""
        for layer in self.layers:
            vectors = layer(vectors)
        return vectors.astype(np.float32)


class LayerNames(Struct, frozen=True):
    """The names in a checkpoint of one layer of a head."""

    name: str
    activation: str = ""
    norm: str = ""
    eps: float = 1e-5


def read_head(names: Sequence[LayerNames], weights: Weights) -> PoolingHead:
    """Read a head from the model's own weights."""
    layers = []
    for each in names:
        norm = None
        if each.norm:
            scale = _tensor(weights, f"{each.norm}.weight")
            norm = scale[0], _optional(weights, f"{each.norm}.bias"), each.eps
        weight = _tensor(weights, f"{each.name}.weight")
        bias = _optional(weights, f"{each.name}.bias")
        layers.append(Layer(weight, bias, each.activation, norm))
    return _checked(layers)


def read_dense(stated: Sequence[DenseLayer], width: int) -> PoolingHead:
    """Read the dense layers of sentence-transformers, each from a file of its own."""
    layers = []
    for each in stated:
        weights = CheckpointWeights(open_shards([each.directory / "model.safetensors"]))
        weight = _tensor(weights, "linear.weight")
        bias = _tensor(weights, "linear.bias")[0] if each.bias else None
        if weight.shape != (each.outputs, each.inputs):
            raise TensorMismatchError(
                f"linear.weight has the shape {weight.shape}, and its config.json says "
                f"({each.outputs}, {each.inputs})",
                path=each.directory,
            )
        layers.append(Layer(weight, bias, each.activation))
    return _checked(layers, width)


def _checked(layers: Sequence[Layer], width: int | None = None) -> PoolingHead:
    """Refuse layers that do not take what the one before gives."""
    for layer in layers:
        if width is not None and layer.weight.shape[1] != width:
            raise TensorMismatchError(
                f"a layer behind pooling takes {layer.weight.shape[1]} numbers, and {width} come"
            )
        width = len(layer.weight)
    return PoolingHead(tuple(layers))


def _tensor(weights: Weights, name: str) -> Floats:
    if name not in weights.shapes():
        raise TensorMismatchError(
            f"{name} is missing, which the model's architecture has behind pooling",
            advice="the checkpoint is incomplete, or is of another model family",
        )
    values: Floats = weights.rows(name).floats()
    return values


def _optional(weights: Weights, name: str) -> Floats | None:
    return _tensor(weights, name)[0] if name in weights.shapes() else None


def _normalised(x: Floats, weight: Floats, bias: Floats | None, eps: float) -> Floats:
    centred = x - x.mean(-1, keepdims=True)
    y: Floats = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * weight
    return y if bias is None else y + bias


def _gelu(x: Floats) -> Floats:
    halves = [[0.5 * (1.0 + math.erf(value / math.sqrt(2.0))) for value in row] for row in x]
    return x * np.array(halves, np.float32)


def _sigmoid(x: Floats) -> Floats:
    shares: Floats = np.float32(1.0) / (np.float32(1.0) + np.exp(-x))
    return shares


def _relu(x: Floats) -> Floats:
    return np.maximum(x, np.float32(0.0))


def _same(x: Floats) -> Floats:
    return x


ACTIVATIONS: Mapping[str, Function] = {
    "": _same,
    "tanh": np.tanh,
    "relu": _relu,
    "gelu": _gelu,
    "sigmoid": _sigmoid,
}
