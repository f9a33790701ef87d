"""BERT and the encoders that keep its blocks: RoBERTa and XLM-R, DistilBERT, MPNet, NomicBERT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.layers import Encoder, FirstOf, ModelSpec, StoredTensor, WeightSource
from octavo.models.config_reader import Config, ConfigurationError

# Tensors behind the blocks, for other tasks; models/pooling.py reads a classifier's.
BEHIND = ("pooler.*", "cls.*", "lm_head.*", "classifier.*", "*position_ids", "*token_type_ids")


def encoder_spec(config: Config, **own: Any) -> ModelSpec:
    """Read a spec of BERT's form: layer norms, biases everywhere, plain MLPs, learned positions."""
    layers = own.pop("layers", None) or config.layers()
    if config.string("position_embedding_type", "absolute") != "absolute":
        raise ConfigurationError(
            "config: position_embedding_type must be absolute: relative positions of BERT's kind "
            "are not supported"
        )
    usual: dict[str, Any] = {
        "layers": layers,
        "eps": config.number("layer_norm_eps", 1e-12),
        "norm": "layer",
        "ropes": (None,) * layers,
        "windows": (None,) * layers,
        "qkv_bias": True,
        "out_bias": True,
        "mlp_bias": True,
        "gated": False,
        "has_head": False,
    }
    own = usual | own
    if "activation" not in own:
        own["activation"] = config.activation("hidden_act", "gelu")
    return config.standard_spec(**own)


class Bert(Encoder):
    """An encoder of blocks that normalise their sums."""

    renames: tuple[tuple[str, str], ...] = (("bert.", ""),)
    ignored: tuple[str, ...] = BEHIND

    def weights(self) -> Mapping[str, WeightSource]:
        layer = "encoder.layer.*."
        attention = layer + "attention.self."
        positions = "embeddings.position_embeddings"
        return {
            "embed": "embeddings.word_embeddings",
            "position": StoredTensor(positions, skipped=self.spec.skipped_positions),
            "type": "embeddings.token_type_embeddings",
            "embed_norm": "embeddings.LayerNorm",
            "blocks.*.attn.qkv": tuple(attention + name for name in ("query", "key", "value")),
            "blocks.*.attn.out": layer + "attention.output.dense",
            "blocks.*.attn_norm": layer + "attention.output.LayerNorm",
            "blocks.*.mlp.up": layer + "intermediate.dense",
            "blocks.*.mlp.down": layer + "output.dense",
            "blocks.*.mlp_norm": layer + "output.LayerNorm",
        }

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """Read the spec; the second text of a pair has a type of its own."""
        return encoder_spec(config, types=config.integer("type_vocab_size", 2))


class Roberta(Bert):
    """An encoder whose positions begin behind the padding token's number."""

    renames = (("roberta.", ""),)

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """Read the spec; the table of positions has rows that no token uses."""
        return encoder_spec(
            config, types=config.integer("type_vocab_size", 1), **_behind_padding(config)
        )


class MPNet(Bert):
    """An encoder without types, whose attention adds a number for each distance."""

    renames = (("mpnet.", ""),)

    def weights(self) -> Mapping[str, WeightSource]:
        layer = "encoder.layer.*."
        attention = layer + "attention.attn."
        return {
            **super().weights(),
            "blocks.*.attn.qkv": tuple(attention + name for name in "qkv"),
            "blocks.*.attn.attend.distances": "encoder.relative_attention_bias",
            "blocks.*.attn.out": attention + "o",
            "blocks.*.attn_norm": layer + "attention.LayerNorm",
        }

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """Read the spec; all layers share one table of numbers for distances."""
        buckets = config.positive("relative_attention_num_buckets", 32)
        return encoder_spec(config, buckets=buckets, **_behind_padding(config))


class DistilBert(Bert):
    """An encoder of half of BERT's layers, without types."""

    renames = (("distilbert.", ""),)
    ignored = (*BEHIND, "pre_classifier.*", "vocab_*", "qa_outputs.*")

    def weights(self) -> Mapping[str, WeightSource]:
        layer = "transformer.layer.*."
        attention = layer + "attention."
        return {
            **super().weights(),
            "blocks.*.attn.qkv": tuple(attention + name for name in ("q_lin", "k_lin", "v_lin")),
            "blocks.*.attn.out": attention + "out_lin",
            "blocks.*.attn_norm": layer + "sa_layer_norm",
            "blocks.*.mlp.up": layer + "ffn.lin1",
            "blocks.*.mlp.down": layer + "ffn.lin2",
            "blocks.*.mlp_norm": layer + "output_layer_norm",
        }

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """Read the spec from DistilBERT's own keys."""
        hidden, heads = config.positive("dim"), config.positive("n_heads")
        dim = _head_dim(config, hidden, heads)
        layers = config.layers("n_layers")
        return ModelSpec(
            vocabulary=config.positive("vocab_size"),
            hidden=hidden,
            layers=layers,
            heads=heads,
            kv_heads=heads,
            head_dim=dim,
            ffn=config.positive("hidden_dim"),
            eps=1e-12,
            activation=config.activation("activation", "gelu"),
            max_len=config.positive("max_position_embeddings", 512),
            attention_scale=dim**-0.5,
            ropes=(None,) * layers,
            windows=(None,) * layers,
            qkv_bias=True,
            out_bias=True,
            mlp_bias=True,
            gated=False,
            norm="layer",
            has_head=False,
        )


class NomicBert(Bert):
    """An encoder with rotated positions and gated MLPs without biases."""

    renames = (("bert.", ""), ("nomic_bert.", ""))

    def weights(self) -> Mapping[str, WeightSource]:
        old, new = "encoder.layers.*.", "layers.*."
        ours = new + "self_attn."
        separate = tuple(ours + f"{name}_proj" for name in "qkv")
        gate_up = (old + "mlp.fc12", old + "mlp.fc11")
        return {
            "embed": "embeddings.word_embeddings",
            "type": "embeddings.token_type_embeddings",
            "embed_norm": FirstOf(("emb_ln", "embeddings.LayerNorm")),
            "blocks.*.attn.qkv": FirstOf((old + "attn.Wqkv", separate)),
            "blocks.*.attn.out": FirstOf((old + "attn.out_proj", ours + "o_proj")),
            "blocks.*.attn_norm": FirstOf((old + "norm1", new + "post_attention_layernorm")),
            "blocks.*.mlp_norm": FirstOf((old + "norm2", new + "post_mlp_layernorm")),
            "blocks.*.mlp.gate_up": FirstOf(
                (gate_up, (new + "mlp.gate_proj", new + "mlp.up_proj"))
            ),
            "blocks.*.mlp.down": FirstOf((old + "mlp.fc2", new + "mlp.down_proj")),
        }

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """Read the spec, under the keys of GPT-2 as published, or under the usual ones."""
        is_first = config.has("n_embd")
        hidden = config.positive("n_embd" if is_first else "hidden_size")
        heads = config.positive("n_head" if is_first else "num_attention_heads")
        layers = config.layers("n_layer" if is_first else "num_hidden_layers")
        dim = _head_dim(config, hidden, heads)
        for key, usual in (("prenorm", False), ("parallel_block", False), ("causal", False)):
            if config.boolean(key, usual) is not usual:
                raise ConfigurationError(f"config: {key} = {not usual} is not supported here")
        rope = config.rope(dim, theta=1000.0, theta_key="rotary_emb_base")
        length = "max_trained_positions" if config.has("max_trained_positions") else "n_positions"
        activation = "silu" if is_first else config.activation("hidden_act", "silu")
        if is_first and config.string("activation_function", "swiglu") != "swiglu":
            raise ConfigurationError("config: activation_function must be swiglu for NomicBERT")
        return ModelSpec(
            vocabulary=config.positive("vocab_size"),
            hidden=hidden,
            layers=layers,
            heads=heads,
            kv_heads=heads,
            head_dim=dim,
            ffn=config.positive("n_inner" if is_first else "intermediate_size"),
            eps=config.number("layer_norm_epsilon" if is_first else "layer_norm_eps", 1e-12),
            activation=activation,
            max_len=config.positive(length if is_first else "max_position_embeddings", 2048),
            attention_scale=dim**-0.5,
            ropes=(rope,) * layers,
            windows=(None,) * layers,
            qkv_bias=config.boolean("qkv_proj_bias", False),
            out_bias=config.boolean("qkv_proj_bias", False),
            mlp_bias=config.boolean("mlp_fc1_bias", False),
            norm="layer",
            has_head=False,
            types=config.integer("type_vocab_size", 2),
        )


def _behind_padding(config: Config) -> dict[str, Any]:
    """Return the rows of the positions' table that are skipped, and the longest text then."""
    skipped = config.integer("pad_token_id", 1) + 1
    rows = config.positive("max_position_embeddings", 514)
    if rows <= skipped:
        raise ConfigurationError(
            f"{config.name_of('max_position_embeddings')} {rows} leaves no position behind the "
            f"{skipped} that are skipped"
        )
    return {"skipped_positions": skipped, "max_len": rows - skipped}


def _head_dim(config: Config, hidden: int, heads: int) -> int:
    if hidden % heads:
        raise ConfigurationError(f"config: {hidden} does not divide into {heads} heads")
    return hidden // heads
