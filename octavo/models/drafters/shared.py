"""Layers that a drafter shares with the model for which it drafts."""

from __future__ import annotations

from octavo.layers import Embedding, Linear, Model, ModelSpec, TensorDeclaration, Value
from octavo.models.weights import Weights


class SharedEmbedding(Embedding):
    """The model's own table, which the drafter's files do not have."""

    def tensors(self) -> dict[str, TensorDeclaration]:
        return {}


class SharedHead(Linear):
    """The model's own head, which the drafter's files do not have."""

    def tensors(self) -> dict[str, TensorDeclaration]:
        return {}


def has_embedding(weights: Weights) -> bool:
    """Return whether a drafter's files have a table of their own."""
    return has_tensor(weights, "embed_tokens")


def has_tensor(weights: Weights, name: str) -> bool:
    """Return whether a drafter's files have the weight of a layer of their own."""
    return any(each.endswith(f"{name}.weight") for each in weights.shapes())


def scores_of(drafter: Model, hidden: Value, target: ModelSpec) -> Value:
    """Compute the scores that the model itself gives to states, by its own head."""
    assert drafter.head is not None
    scores = drafter.head(hidden)
    if target.logit_scale != 1.0:
        scores = scores * target.logit_scale
    return scores if target.logit_cap is None else drafter.ops.soft_cap(scores, target.logit_cap)


def take_shared(drafter: Model, model: Model) -> None:
    """Give a drafter the bound weights that it shares with the model."""
    for _, layer in drafter.walk():
        if isinstance(layer, SharedEmbedding):
            layer.weight = model.embed.weight
        elif isinstance(layer, SharedHead):
            assert model.head is not None, "only a model with a head has a drafter"
            if model.head.has_bias:
                layer.has_bias, layer.bias = True, model.head.bias
            layer.weight = model.head.weight
