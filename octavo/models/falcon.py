"""Falcon: attention and MLP side by side, KV heads shared by all queries or by groups of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from octavo.layers import (
    MLP,
    CausalLM,
    Embedding,
    From,
    LayerNorm,
    Linear,
    PagedAttention,
    ParallelBlock,
    QKVLinear,
    SelfAttention,
    grouped_rows,
)
from octavo.layers.weight_names import WeightSource
from octavo.models.config_reader import Config, ConfigurationError
from octavo.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class FalconSpec(ModelSpec):
    """What only Falcon has."""

    two_norms: bool = False  # the MLP has a norm of its own


class Attention(SelfAttention):
    """Self-attention, its KV heads shared by groups of queries."""

    def __init__(self, spec: FalconSpec, layer: int) -> None:
        heads, kv_heads, dim, bias = spec.heads, spec.kv_heads, spec.head_dim, spec.mlp_bias
        self.qkv = QKVLinear(spec.hidden, heads, kv_heads, dim, bias=bias)
        self.attend = PagedAttention(
            heads, kv_heads, dim, scale=spec.attention_scale, rope=spec.ropes[layer]
        )
        self.out = Linear(spec.hidden, spec.hidden, bias=bias, shard="in")


class Block(ParallelBlock):
    """Attention and a plain MLP."""

    def __init__(self, spec: FalconSpec, layer: int) -> None:
        super().__init__(
            LayerNorm(spec.hidden, spec.eps),
            Attention(spec, layer),
            LayerNorm(spec.hidden, spec.eps) if spec.two_norms else None,
            MLP(spec.hidden, spec.ffn, spec.activation, bias=spec.mlp_bias),
        )


class Falcon(CausalLM):
    """The whole decoder."""

    architectures = ("FalconForCausalLM",)
    ignored = ("transformer.h.*.self_attention.rotary_emb.inv_freq",)

    def __init__(self, spec: FalconSpec) -> None:
        self.spec = spec
        self.embed = Embedding(spec.vocabulary, spec.hidden)
        self.blocks = [Block(spec, layer) for layer in range(spec.layers)]
        self.norm = LayerNorm(spec.hidden, spec.eps)
        self.head = Linear(spec.hidden, spec.vocabulary, shard="out")
        self.tied = spec.tied

    def weights(self) -> Mapping[str, WeightSource]:
        block, spec = "transformer.h.*.", self.spec
        rows = grouped_rows(spec.heads, spec.kv_heads, spec.head_dim)
        return {
            "embed": "transformer.word_embeddings",
            "blocks.*.attn_norm": block + ("ln_attn" if spec.two_norms else "input_layernorm"),
            "blocks.*.mlp_norm": block + "ln_mlp",
            "blocks.*.attn.qkv": From(block + "self_attention.query_key_value", rows),
            "blocks.*.attn.out": block + "self_attention.dense",
            "blocks.*.mlp.up": block + "mlp.dense_h_to_4h",
            "blocks.*.mlp.down": block + "mlp.dense_4h_to_h",
            "norm": "transformer.ln_f",
            "head": "lm_head",
        }

    @staticmethod
    def read(config: Config) -> FalconSpec:
        """What a Falcon config.json says; 7B and 40B differ in their KV heads and norms."""
        if config.boolean("alibi", False) or not config.boolean("parallel_attn", True):
            raise ConfigurationError(
                "config: the Falcon-RW variants (alibi, or attention and MLP in turn) are not "
                "supported; Falcon 7B, 11B, 40B and 180B are"
            )
        heads, hidden = config.positive("num_attention_heads"), config.positive("hidden_size")
        layers, dim = config.layers(), config.head_dim()
        is_grouped = config.boolean("new_decoder_architecture", False)
        kv_heads = heads
        if is_grouped:
            kv_heads = config.positive("num_kv_heads", heads)
        elif config.boolean("multi_query", True):
            kv_heads = 1
        if heads % kv_heads:
            raise ConfigurationError(
                f"config: {heads} heads do not divide among {kv_heads} KV heads"
            )
        return FalconSpec(
            vocabulary=config.positive("vocab_size"),
            hidden=hidden,
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=dim,
            ffn=config.positive("ffn_hidden_size", 4 * hidden),
            eps=config.number("layer_norm_epsilon", 1e-5),
            activation=config.activation("activation", "gelu"),
            max_len=config.max_len(),
            attention_scale=dim**-0.5,
            ropes=(config.rope(dim),) * layers,
            windows=(None,) * layers,
            tied=config.boolean("tie_word_embeddings", True),
            mlp_bias=config.boolean("bias", False),
            two_norms=is_grouped and config.positive("num_ln_in_parallel_attn", 2) == 2,
        )
