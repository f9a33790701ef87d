"""MTP: a layer in the model's own files that was trained with it to foresee the token after next.

Its row of a position joins the token there with the model's last hidden state of the position
before, both normalised, and passes them through a block of the model's own kind. The model's head
scores the result, normalised; so it is the state from which the row behind goes on. As with EAGLE,
a row is one position later than in published code.

Where a model has several such layers, each was trained to follow the one before. The first one is
used for all drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from msgspec import structs

from octavo.backends.stored_rows import StoredRows
from octavo.layers import (
    Batch,
    CausalLM,
    Features,
    Linear,
    Model,
    ModelSpec,
    Value,
    WeightSource,
    standard_norm,
)
from octavo.loader.errors import errors_at
from octavo.models.build import checked_needs
from octavo.models.config_reader import ConfigurationError
from octavo.models.drafters.further_layers import skip_first
from octavo.models.drafters.shared import SharedEmbedding, SharedHead, scores_of
from octavo.models.drafters.side_by_side import SideBySide, part
from octavo.models.load import OpenedModel
from octavo.models.weights import Weights, named_as_declared

_LAYER = "model.layers.0."  # what the layer's tensors are called here, whatever the family


class Names(NamedTuple):
    """The places of a layer's tensors in a family's files, beside those of its block."""

    layer: str  # the prefix of the first one; `{}` is the number of the model's own layers
    of_embed: str  # the norm of the token's embedding
    of_feature: str  # the norm of the hidden state
    join: str  # the projection of both
    feature_first: bool  # in the projection's inputs
    norm: str  # behind the block
    copies: tuple[str, ...] = ()  # of tensors of the model itself, which are used instead


FAMILIES: dict[str, Names] = {
    "DeepseekV3ForCausalLM": Names(
        *("model.layers.{}.", "enorm", "hnorm", "eh_proj", False, "shared_head.norm"),
        copies=("embed_tokens.", "shared_head.head."),
    ),
    "MiMoForCausalLM": Names(
        *("model.mtp_layers.0.", "token_layernorm", "hidden_layernorm", "input_proj", True),
        norm="final_layernorm",
    ),
}


class MultiTokenLayer(Model):
    """A block of the model's kind, with what joins its inputs; embedding and head are shared."""

    ignored = ("*rotary_emb.inv_freq",)
    features: Features

    def __init__(
        self, spec: ModelSpec, family: Callable[[ModelSpec], CausalLM], names: Names
    ) -> None:
        hidden, alike = spec.hidden, family(spec)
        self.spec, self.names = spec, names
        self.features = Features(hidden)
        self.embed = SharedEmbedding(spec.vocabulary, hidden, spec.embed_scale)
        self.embed_norm, self.feature_norm = standard_norm(spec), standard_norm(spec)
        self.of_embed, self.of_feature = Linear(hidden, hidden), Linear(hidden, hidden)
        self._of_block = alike.weights()
        self.blocks = alike.blocks
        skip_first(alike.blocks[0])
        self.norm = standard_norm(spec)
        self.head = SharedHead(hidden, spec.vocabulary)

    def weights(self) -> Mapping[str, WeightSource]:
        names, join = self.names, _LAYER + self.names.join
        return {
            **{path: each for path, each in self._of_block.items() if path.startswith("blocks.")},
            "embed_norm": _LAYER + names.of_embed,
            "feature_norm": _LAYER + names.of_feature,
            "of_embed": part(join, int(names.feature_first)),
            "of_feature": part(join, int(not names.feature_first)),
            "norm": _LAYER + names.norm,
        }

    def hidden(self, batch: Batch) -> Value:
        x = self.of_embed(self.embed_norm(self.embed(batch.token_ids)))
        x = x + self.of_feature(self.feature_norm(self.features.rows.before()))
        x, residual = self.blocks[0](x, None, batch)
        normed, _ = self.norm.add(x, residual)
        # What it proposes next is behind a token of which the model has no hidden state yet.
        self.features.rows.keep(self.ops.select_rows(normed, batch.logits_rows))
        return normed

    def logits(self, hidden: Value) -> Value:
        return scores_of(self, hidden, self.spec)


class OneLayer:
    """The weights of one layer under a prefix of their own; implements `Weights`."""

    def __init__(self, weights: Weights, prefix: str, copies: tuple[str, ...]) -> None:
        self._weights, self._prefix = weights, prefix
        self._copies = tuple([prefix + each for each in copies])

    def _stored(self, name: str) -> str:
        return self._prefix + name.removeprefix(_LAYER)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {
            _LAYER + name.removeprefix(self._prefix): shape
            for name, shape in self._weights.shapes().items()
            if name.startswith(self._prefix) and not name.startswith(self._copies)
        }

    def rows(self, name: str) -> StoredRows:
        return self._weights.rows(self._stored(name))

    def row_type(self, name: str) -> str:
        return self._weights.row_type(self._stored(name))

    def is_in_act_order(self, name: str) -> bool:
        return self._weights.is_in_act_order(self._stored(name))

    def stored_types(self) -> Mapping[str, str]:
        return self._weights.stored_types()

    def check(self, expected: Mapping[str, tuple[int, ...]], extra: Iterable[str]) -> None:
        """Refuse missing tensors, wrong shapes, and others of the layer; not those beside it."""
        beside = [
            name
            for name in self._weights.shapes()
            if not name.startswith(self._prefix) or name.startswith(self._copies)
        ]
        stored = {self._stored(name): shape for name, shape in expected.items()}
        self._weights.check(stored, [*beside, *map(self._stored, extra)])


def open_own_layer(opened: OpenedModel, method: str) -> OpenedModel:
    """Declare the layer that a model's own files have for drafts, and check its tensors."""
    with errors_at(opened.checkpoint.path):
        layer, weights = _declare(opened, method)
        checked_needs(layer, weights)
    facts = opened.generation, opened.checkpoint, opened.pooling
    kind = opened.quantization
    return OpenedModel(method, layer, layer.spec, weights, *facts, heads={}, quantization=kind)


def _declare(opened: OpenedModel, method: str) -> tuple[MultiTokenLayer, Weights]:
    names = FAMILIES.get(opened.architecture)
    if names is None:
        raise ConfigurationError(
            f"a model of the kind {opened.architecture} has no layer of its own that drafts, which "
            f"method={method!r} uses: {' and '.join(FAMILIES)} have one; take another method"
        )
    model, target = opened.model, opened.spec
    assert isinstance(model, CausalLM)
    weights = named_as_declared(opened.weights, model)
    prefix = names.layer.format(target.layers)
    if f"{prefix}{names.join}.weight" not in weights.shapes():
        raise ConfigurationError(
            f"the method {method!r} needs {prefix}{names.join}.weight, and the model's files lack "
            "it, as converted ones often do; take those that were published"
        )
    spec = structs.replace(
        target,
        layers=1,
        num_drafting=0,
        ropes=target.ropes[-1:],
        windows=target.windows[-1:],
        experts=target.experts[-1:],
    )
    layer = MultiTokenLayer(spec, type(model), names)
    return layer, SideBySide(OneLayer(weights, prefix, names.copies), {names.join: 2})
