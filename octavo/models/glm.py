"""GLM-4 of 2025: norms before and behind each half of a block, half of each head turning.

GLM-4 in its first form has only the norms before, and is in llama.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from octavo.layers import (
    CausalLM,
    Embedding,
    GatedMLP,
    Linear,
    PagedAttention,
    QKVLinear,
    RMSNorm,
    SandwichBlock,
    SelfAttention,
)
from octavo.layers.weight_names import WeightSource
from octavo.models.config_reader import Config
from octavo.models.spec import ModelSpec


class Attention(SelfAttention):
    """Self-attention with biases in front and none behind."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        heads, kv_heads, dim = spec.heads, spec.kv_heads, spec.head_dim
        self.qkv = QKVLinear(spec.hidden, heads, kv_heads, dim, bias=spec.qkv_bias)
        self.attend = PagedAttention(
            heads, kv_heads, dim, scale=spec.attention_scale, rope=spec.ropes[layer]
        )
        self.out = Linear(heads * dim, spec.hidden, shard="in")


class Block(SandwichBlock):
    """Attention and a gated MLP."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__(
            RMSNorm(spec.hidden, spec.eps),
            Attention(spec, layer),
            RMSNorm(spec.hidden, spec.eps),
            RMSNorm(spec.hidden, spec.eps),
            GatedMLP(spec.hidden, spec.ffn, spec.activation),
            RMSNorm(spec.hidden, spec.eps),
        )


class Glm4(CausalLM):
    """The whole decoder."""

    architectures = ("Glm4ForCausalLM",)

    def __init__(self, spec: ModelSpec) -> None:
        self.embed = Embedding(spec.vocabulary, spec.hidden)
        self.blocks = [Block(spec, layer) for layer in range(spec.layers)]
        self.norm = RMSNorm(spec.hidden, spec.eps)
        self.head = Linear(spec.hidden, spec.vocabulary, shard="out")
        self.tied = spec.tied

    def weights(self) -> Mapping[str, WeightSource]:
        layer, attention = "model.layers.*.", "model.layers.*.self_attn."
        return {
            "embed": "model.embed_tokens",
            "blocks.*.attn_norm": layer + "input_layernorm",
            "blocks.*.attn.qkv": tuple(attention + name for name in ("q_proj", "k_proj", "v_proj")),
            "blocks.*.attn.out": attention + "o_proj",
            "blocks.*.attn_out_norm": layer + "post_self_attn_layernorm",
            "blocks.*.mlp_norm": layer + "post_attention_layernorm",
            "blocks.*.mlp.gate_up": layer + "mlp.gate_up_proj",
            "blocks.*.mlp.down": layer + "mlp.down_proj",
            "blocks.*.mlp_out_norm": layer + "post_mlp_layernorm",
            "norm": "model.norm",
            "head": "lm_head",
        }

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """Half of each head turns unless the file says otherwise."""
        layers, dim = config.layers(), config.head_dim()
        return ModelSpec(
            vocabulary=config.positive("vocab_size"),
            hidden=config.positive("hidden_size"),
            layers=layers,
            heads=config.positive("num_attention_heads"),
            kv_heads=config.kv_heads(),
            head_dim=dim,
            ffn=config.positive("intermediate_size"),
            eps=config.number("rms_norm_eps", 1.5625e-7),
            activation=config.activation("hidden_act", "silu"),
            max_len=config.max_len(),
            attention_scale=dim**-0.5,
            ropes=(config.rope(dim, share=0.5, interleaved=True),) * layers,
            windows=(None,) * layers,
            tied=config.boolean("tie_word_embeddings", False),
            qkv_bias=config.boolean("attention_bias", True),
        )
