"""GPT-NeoX: NeoX 20B and Pythia, their queries, keys and values fused head by head."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.layers import (
    MLP,
    Block,
    CausalLM,
    Embedding,
    From,
    LayerNorm,
    Linear,
    PagedAttention,
    ParallelBlock,
    QKVLinear,
    SelfAttention,
    SequentialBlock,
    grouped_rows,
)
from octavo.layers.weight_names import WeightSource
from octavo.models.config_reader import Config
from octavo.models.spec import ModelSpec


class Attention(SelfAttention):
    """Self-attention, every head with keys and values of its own."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        heads, dim = spec.heads, spec.head_dim
        self.qkv = QKVLinear(spec.hidden, heads, heads, dim, bias=spec.qkv_bias)
        self.attend = PagedAttention(
            heads, heads, dim, scale=spec.attention_scale, rope=spec.ropes[layer]
        )
        self.out = Linear(spec.hidden, spec.hidden, bias=spec.out_bias, shard="in")


def make_block(spec: ModelSpec, layer: int) -> Block:
    """Attention and an MLP, side by side or in turn."""
    kind = ParallelBlock if spec.parallel else SequentialBlock
    return kind(
        LayerNorm(spec.hidden, spec.eps),
        Attention(spec, layer),
        LayerNorm(spec.hidden, spec.eps),
        MLP(spec.hidden, spec.ffn, spec.activation),
    )


class GPTNeoX(CausalLM):
    """The whole decoder."""

    architectures = ("GPTNeoXForCausalLM",)
    ignored = (
        "gpt_neox.layers.*.attention.bias",  # the causal mask, as a tensor
        "gpt_neox.layers.*.attention.masked_bias",
        "gpt_neox.layers.*.attention.rotary_emb.inv_freq",
    )

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.embed = Embedding(spec.vocabulary, spec.hidden)
        self.blocks = [make_block(spec, layer) for layer in range(spec.layers)]
        self.norm = LayerNorm(spec.hidden, spec.eps)
        self.head = Linear(spec.hidden, spec.vocabulary, shard="out")
        self.tied = spec.tied

    def weights(self) -> Mapping[str, WeightSource]:
        block, spec = "gpt_neox.layers.*.", self.spec
        rows = grouped_rows(spec.heads, spec.heads, spec.head_dim)
        return {
            "embed": "gpt_neox.embed_in",
            "blocks.*.attn_norm": block + "input_layernorm",
            "blocks.*.attn.qkv": From(block + "attention.query_key_value", rows),
            "blocks.*.attn.out": block + "attention.dense",
            "blocks.*.mlp_norm": block + "post_attention_layernorm",
            "blocks.*.mlp.up": block + "mlp.dense_h_to_4h",
            "blocks.*.mlp.down": block + "mlp.dense_4h_to_h",
            "norm": "gpt_neox.final_layer_norm",
            "head": "embed_out",
        }

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """What a GPT-NeoX config.json says; older ones say rotary_pct and rotary_emb_base."""
        layers, dim = config.layers(), config.head_dim()
        share = config.number("rotary_pct", 0.25)
        rope = config.rope(dim, theta_key="rotary_emb_base", share=share)
        bias = config.boolean("attention_bias", True)
        return ModelSpec(
            vocabulary=config.positive("vocab_size"),
            hidden=config.positive("hidden_size"),
            layers=layers,
            heads=config.positive("num_attention_heads"),
            kv_heads=config.positive("num_attention_heads"),
            head_dim=dim,
            ffn=config.positive("intermediate_size"),
            eps=config.number("layer_norm_eps", 1e-5),
            activation=config.activation("hidden_act", "gelu"),
            max_len=config.max_len(),
            attention_scale=dim**-0.5,
            ropes=(rope,) * layers,
            windows=(None,) * layers,
            tied=config.boolean("tie_word_embeddings", False),
            qkv_bias=bias,
            out_bias=bias,
            parallel=config.boolean("use_parallel_residual", True),
        )
