"""EAGLE-3: layers over tokens and what the model has made of the ones before them.

The model's hidden states of some layers are projected to one row for each position, the feature.
The drafter's row of a position reads its own token and the feature of the position before. In
published code that row has the position of the feature: scores depend on distances alone, so it is
the same here, a position later. The first position has no feature before it and is not read.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from octavo.layers import (
    Batch,
    Embedding,
    Features,
    GatedMLP,
    Linear,
    Model,
    ModelSpec,
    PagedAttention,
    QKVLinear,
    RMSNorm,
    Value,
    WeightSource,
)
from octavo.loader import Checkpoint
from octavo.models.config_reader import Config, ConfigurationError
from octavo.models.drafters.further_layers import FurtherLayers, further_weights, skip_first
from octavo.models.drafters.reading import INPUT_IDS, OUTPUT_IDS, checked_spec, read_layers
from octavo.models.drafters.shared import SharedEmbedding, has_embedding
from octavo.models.drafters.side_by_side import SideBySide, part
from octavo.models.drafters.small_vocabulary import IS_PROPOSED, OFFSETS, read_tokens
from octavo.models.weights import Weights

_QKV = ("q_proj", "k_proj", "v_proj")


class Eagle3(Model):
    """A drafter whose first layer reads two inputs, with a head over its own vocabulary."""

    ignored = (OFFSETS, IS_PROPOSED, "*rotary_emb.inv_freq")
    renames = (
        ("model.layers.0.", "midlayer."),
        ("layers.0.", "midlayer."),
        ("model.midlayer.", "midlayer."),
        ("model.", ""),
    )
    features: Features

    def __init__(
        self,
        spec: ModelSpec,
        features: Features,
        tokens: NDArray[np.int64] | None,
        *,
        has_embedding: bool,
        norm_before_residual: bool,
    ) -> None:
        hidden, eps = spec.hidden, spec.eps
        sizes = hidden, spec.heads, spec.kv_heads, spec.head_dim
        embedding = Embedding if has_embedding else SharedEmbedding
        self.spec = spec
        self.features = features
        self.embed = embedding(spec.vocabulary, hidden)
        self.embed_norm, self.feature_norm = RMSNorm(hidden, eps), RMSNorm(hidden, eps)
        self.qkv_embed = QKVLinear(*sizes, bias=spec.qkv_bias)
        self.qkv_feature = QKVLinear(*sizes)
        self.attend = PagedAttention(
            *sizes[1:], scale=spec.attention_scale, rope=spec.ropes[0], window=spec.windows[0]
        )
        skip_first(self.attend)
        self.out = Linear(spec.heads * spec.head_dim, hidden, bias=spec.out_bias)
        self.mlp_norm = RMSNorm(hidden, eps)
        self.mlp = GatedMLP(hidden, spec.ffn, spec.activation, bias=spec.mlp_bias)
        self.further = FurtherLayers(spec)
        self.norm = RMSNorm(hidden, eps)
        self.tokens = tokens  # the model's ids of its own; None: they are the same
        self.head = Linear(hidden, spec.vocabulary if tokens is None else len(tokens))
        self.norm_before_residual = norm_before_residual

    def weights(self) -> Mapping[str, WeightSource]:
        attention, mlp = "midlayer.self_attn.", "midlayer.mlp."
        return {
            **further_weights(self.spec, "further"),
            "embed": "embed_tokens",
            "embed_norm": "midlayer.input_layernorm",
            "feature_norm": "midlayer.hidden_norm",
            "qkv_embed": tuple(part(attention + name, 0) for name in _QKV),
            "qkv_feature": tuple(part(attention + name, 1) for name in _QKV),
            "out": attention + "o_proj",
            "mlp_norm": "midlayer.post_attention_layernorm",
            "mlp.gate_up": (mlp + "gate_proj", mlp + "up_proj"),
            "mlp.down": mlp + "down_proj",
            "features.projections.*": "fc/*",
            "norm": "norm",
            "head": "lm_head",
        }

    def hidden(self, batch: Batch) -> Value:
        feature = self.features.rows.before()
        normed = self.feature_norm(feature)
        residual = normed if self.norm_before_residual else feature
        qkv = self.qkv_embed(self.embed_norm(self.embed(batch.token_ids)))
        x = self.out(self.attend(qkv + self.qkv_feature(normed), batch))
        x, residual = self.mlp_norm.add(x, residual)
        normed, total = self.norm.add(*self.further(self.mlp(x), residual, batch))
        # What it proposes next is behind a token of which the model has no hidden state yet.
        self.features.rows.keep(self.ops.select_rows(total, batch.logits_rows))
        return normed

    def logits(self, hidden: Value) -> Value:
        assert self.head is not None
        scores = self.head(hidden)
        if self.tokens is None:
            return scores
        return self.ops.spread(scores, self.tokens, self.spec.vocabulary)


def declare(
    config: Config, target: ModelSpec, weights: Weights, checkpoint: Checkpoint
) -> tuple[Eagle3, Weights]:
    """Declare the drafter of a checkpoint, and return its weights as the layers have them."""
    spec = checked_spec(config, target, mlp_bias=config.boolean("mlp_bias", False))
    layers = _layers(config, target)
    has_own = has_embedding(weights)
    if not has_own and spec.hidden != target.hidden:
        raise ConfigurationError(
            f"config: hidden_size is {spec.hidden:,}, and the model's embedding has "
            f"{target.hidden:,} numbers, which embed_tokens.weight would have to replace"
        )
    count = config.positive("draft_vocab_size", spec.vocabulary)
    tokens = read_tokens(checkpoint, count, spec.vocabulary)
    model = Eagle3(
        spec,
        Features(spec.hidden, layers, target.hidden),
        tokens,
        has_embedding=has_own,
        norm_before_residual=config.boolean("norm_before_residual", False),
    )
    both = [f"{first}.self_attn.{name}" for first in ("midlayer", "layers.0") for name in _QKV]
    ends = dict.fromkeys(both, 2) | {"fc": len(layers)}
    return model, SideBySide(weights, ends)


def _layers(config: Config, target: ModelSpec) -> tuple[int, ...]:
    """Read the layers of the model whose inputs are the feature's."""
    key, later = INPUT_IDS, 0
    if config.has(OUTPUT_IDS) and not config.has(INPUT_IDS):
        key, later = OUTPUT_IDS, 1
    if not config.has(key):
        return _usual_layers(target)
    return read_layers(config, target, key, later)


def _usual_layers(target: ModelSpec) -> tuple[int, ...]:
    """Return the layers that are read where a file names none."""
    layers = (2, target.layers // 2, target.layers - 3)
    if not 2 < layers[1] < layers[2]:
        raise ConfigurationError(
            f"config: {INPUT_IDS} is missing, and has no default for a model of {target.layers} "
            "layers; name the layers that were trained with"
        )
    return layers
