"""EAGLE: layers over tokens and the model's last hidden states of the positions before them.

The drafter computes what the model's next hidden state would be, and the model's own head scores
it. As with EAGLE-3, its row of a position reads the hidden state of the position before.
"""

from __future__ import annotations

from collections.abc import Mapping

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
    SelfAttention,
    Value,
    WeightSource,
)
from octavo.loader import Checkpoint
from octavo.models.config_reader import Config, ConfigurationError
from octavo.models.drafters.further_layers import FurtherLayers, further_weights, skip_first
from octavo.models.drafters.reading import checked_spec
from octavo.models.drafters.shared import (
    SharedEmbedding,
    SharedHead,
    has_embedding,
    scores_of,
)
from octavo.models.drafters.side_by_side import SideBySide, part
from octavo.models.weights import Weights


class Eagle(Model):
    """A drafter without a norm before its first attention or behind it all."""

    ignored = ("*rotary_emb.inv_freq",)
    renames = (
        ("model.layers.0.", "layer."),
        ("layers.0.", "layer."),
        ("model.", ""),
    )
    features: Features

    def __init__(
        self, spec: ModelSpec, target: ModelSpec, *, has_embedding: bool, has_bias: bool
    ) -> None:
        hidden, heads, kv_heads, dim = spec.hidden, spec.heads, spec.kv_heads, spec.head_dim
        self.spec, self.target = spec, target
        self.features = Features(hidden)
        self.embed = (Embedding if has_embedding else SharedEmbedding)(spec.vocabulary, hidden)
        self.of_embed = Linear(hidden, hidden, bias=has_bias)
        self.of_feature = Linear(hidden, hidden)
        attend = PagedAttention(
            *(heads, kv_heads, dim),
            scale=spec.attention_scale,
            rope=spec.ropes[0],
            window=spec.windows[0],
        )
        skip_first(attend)
        self.attn = SelfAttention(
            QKVLinear(hidden, heads, kv_heads, dim, bias=spec.qkv_bias),
            attend,
            Linear(heads * dim, hidden, bias=spec.out_bias),
        )
        self.mlp_norm = RMSNorm(hidden, spec.eps)
        self.mlp = GatedMLP(hidden, spec.ffn, spec.activation, bias=spec.mlp_bias)
        self.further = FurtherLayers(spec)
        self.head = SharedHead(hidden, spec.vocabulary)

    def weights(self) -> Mapping[str, WeightSource]:
        attention, mlp = "layer.self_attn.", "layer.mlp."
        return {
            **further_weights(self.spec, "further"),
            "embed": "embed_tokens",
            "of_embed": part("fc", 0),
            "of_feature": part("fc", 1),
            "attn.qkv": tuple(attention + name for name in ("q_proj", "k_proj", "v_proj")),
            "attn.out": attention + "o_proj",
            "mlp_norm": "layer.post_attention_layernorm",
            "mlp.gate_up": (mlp + "gate_proj", mlp + "up_proj"),
            "mlp.down": mlp + "down_proj",
        }

    def hidden(self, batch: Batch) -> Value:
        x = self.of_embed(self.embed(batch.token_ids))
        x = x + self.of_feature(self.features.rows.before())
        normed, residual = self.mlp_norm.add(self.attn(x, batch), x)
        x, residual = self.further(self.mlp(normed), residual, batch)
        total = residual + x
        # What it proposes next is behind a token of which the model has no hidden state yet.
        self.features.rows.keep(self.ops.select_rows(total, batch.logits_rows))
        return total

    def logits(self, hidden: Value) -> Value:
        return scores_of(self, hidden, self.target)


def declare(
    config: Config, target: ModelSpec, weights: Weights, checkpoint: Checkpoint
) -> tuple[Eagle, Weights]:
    """Declare the drafter of a checkpoint, and return its weights as the layers have them."""
    spec = checked_spec(config, target, mlp_bias=config.boolean("mlp_bias", False))
    if spec.hidden != target.hidden:
        raise ConfigurationError(
            f"config: hidden_size is {spec.hidden:,}, and the model's head reads {target.hidden:,} "
            "numbers: it was made for another one"
        )
    model = Eagle(
        spec,
        target,
        has_embedding=has_embedding(weights),
        has_bias=any(name in ("fc.bias", "model.fc.bias") for name in weights.shapes()),
    )
    return model, SideBySide(weights, {"fc": 2})
