"""ModernBERT: rotated positions, gated MLPs, norms before attention and MLP, windows both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.layers import (
    Batch,
    Embedding,
    LayerNorm,
    Model,
    ModelSpec,
    Module,
    Value,
    WeightSource,
    encoder_mlp,
    mutual_attention,
)
from octavo.models.config_reader import FULL, SLIDING, Config, ConfigurationError


class ModernBertBlock(Module):
    """Attention and a gated MLP, each behind a norm and added to its input."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        # The embeddings are normalised already where the first block reads them.
        self.attn_norm = _norm(spec) if layer else None
        self.attn = mutual_attention(spec, layer)
        self.mlp_norm = _norm(spec)
        self.mlp = encoder_mlp(spec)

    def __call__(self, x: Value, batch: Batch) -> Value:
        normed = x if self.attn_norm is None else self.attn_norm(x)
        x = x + self.attn(normed, batch)
        return x + self.mlp(self.mlp_norm(x))


class ModernBert(Model):
    """An encoder most of whose layers read a window around each token."""

    renames = (("model.", ""),)
    ignored = ("head.*", "decoder.*", "classifier.*")

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.embed = Embedding(spec.vocabulary, spec.hidden)
        self.embed_norm = _norm(spec)
        self.blocks: Sequence[ModernBertBlock] = [
            ModernBertBlock(spec, layer) for layer in range(spec.layers)
        ]
        self.norm = _norm(spec)

    def hidden(self, batch: Batch) -> Value:
        x = self.embed_norm(self.embed(batch.token_ids))
        for block in self.blocks:
            x = block(x, batch)
        return self.norm(x)

    def weights(self) -> Mapping[str, WeightSource]:
        layer = "layers.*."
        return {
            "embed": "embeddings.tok_embeddings",
            "embed_norm": "embeddings.norm",
            "blocks.*.attn_norm": layer + "attn_norm",
            "blocks.*.attn.qkv": layer + "attn.Wqkv",
            "blocks.*.attn.out": layer + "attn.Wo",
            "blocks.*.mlp_norm": layer + "mlp_norm",
            "blocks.*.mlp.gate_up": layer + "mlp.Wi",
            "blocks.*.mlp.down": layer + "mlp.Wo",
            "norm": "final_norm",
        }

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """Read the spec; every third layer reads all tokens, unless the file lists the kinds."""
        layers, dim = config.layers(), config.head_dim()
        period = config.positive("global_attn_every_n_layers", 3)
        kinds = config.strings("layer_types") or tuple(
            SLIDING if layer % period else FULL for layer in range(layers)
        )
        if len(kinds) != layers or set(kinds) - {FULL, SLIDING}:
            raise ConfigurationError(
                f"config: layer_types must be {FULL} or {SLIDING} for each of {layers} layers"
            )
        window = config.positive("local_attention", 128) // 2 + 1
        far = config.rope(dim, theta=160_000.0, theta_key="global_rope_theta", kind=FULL)
        near = config.rope(dim, theta=10_000.0, theta_key="local_rope_theta", kind=SLIDING)
        return config.standard_spec(
            layers=layers,
            eps=config.number("norm_eps", 1e-5),
            activation=config.activation("hidden_activation", "gelu"),
            norm="layer",
            norm_bias=config.boolean("norm_bias", False),
            qkv_bias=config.boolean("attention_bias", False),
            out_bias=config.boolean("attention_bias", False),
            mlp_bias=config.boolean("mlp_bias", False),
            ropes=tuple(far if kind == FULL else near for kind in kinds),
            windows=tuple(None if kind == FULL else window for kind in kinds),
            has_head=False,
        )


def _norm(spec: ModelSpec) -> LayerNorm:
    return LayerNorm(spec.hidden, spec.eps, bias=spec.norm_bias)
