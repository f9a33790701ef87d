"""StableLM: Llama with LayerNorms, part of each head turning, perhaps a norm for each head."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.layers import (
    Block,
    CausalLM,
    Embedding,
    GatedMLP,
    LayerNorm,
    Linear,
    PagedAttention,
    ParallelBlock,
    Pieces,
    QKVLinear,
    SelfAttention,
    SequentialBlock,
)
from octavo.layers.weight_names import WeightSource
from octavo.models.config_reader import Config
from octavo.models.spec import ModelSpec


class Attention(SelfAttention):
    """Self-attention; where queries and keys are normalised, each head has weights of its own."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        heads, kv_heads, dim = spec.heads, spec.kv_heads, spec.head_dim
        self.qkv = QKVLinear(spec.hidden, heads, kv_heads, dim, bias=spec.qkv_bias)
        self.attend = PagedAttention(
            heads,
            kv_heads,
            dim,
            scale=spec.attention_scale,
            rope=spec.ropes[layer],
            q_norm=LayerNorm((heads, dim), spec.eps, bias=False) if spec.qk_norm else None,
            k_norm=LayerNorm((kv_heads, dim), spec.eps, bias=False) if spec.qk_norm else None,
        )
        self.out = Linear(heads * dim, spec.hidden, shard="in")


def make_block(spec: ModelSpec, layer: int) -> Block:
    """Attention and a gated MLP: in turn, or side by side behind the same norm."""
    norm, attention = LayerNorm(spec.hidden, spec.eps), Attention(spec, layer)
    mlp = GatedMLP(spec.hidden, spec.ffn, spec.activation)
    if spec.parallel:
        return ParallelBlock(norm, attention, None, mlp)
    return SequentialBlock(norm, attention, LayerNorm(spec.hidden, spec.eps), mlp)


class StableLM(CausalLM):
    """The whole decoder."""

    architectures = ("StableLmForCausalLM",)
    ignored = ("model.layers.*.self_attn.rotary_emb.inv_freq",)

    def __init__(self, spec: ModelSpec) -> None:
        self.embed = Embedding(spec.vocabulary, spec.hidden)
        self.blocks = [make_block(spec, layer) for layer in range(spec.layers)]
        self.norm = LayerNorm(spec.hidden, spec.eps)
        self.head = Linear(spec.hidden, spec.vocabulary, shard="out")
        self.tied = spec.tied

    def weights(self) -> Mapping[str, WeightSource]:
        attention, mlp = "model.layers.*.self_attn.", "model.layers.*.mlp."
        return {
            "embed": "model.embed_tokens",
            "blocks.*.attn_norm": "model.layers.*.input_layernorm",
            "blocks.*.attn.qkv": tuple(attention + name for name in ("q_proj", "k_proj", "v_proj")),
            "blocks.*.attn.attend.q_norm": Pieces((attention + "q_layernorm.norms.@",)),
            "blocks.*.attn.attend.k_norm": Pieces((attention + "k_layernorm.norms.@",)),
            "blocks.*.attn.out": attention + "o_proj",
            "blocks.*.mlp_norm": "model.layers.*.post_attention_layernorm",
            "blocks.*.mlp.gate_up": (mlp + "gate_proj", mlp + "up_proj"),
            "blocks.*.mlp.down": mlp + "down_proj",
            "norm": "model.norm",
            "head": "lm_head",
        }

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """What a StableLM config.json says."""
        layers, dim = config.layers(), config.head_dim()
        rope = config.rope(dim, share=0.25)
        return ModelSpec(
            vocabulary=config.positive("vocab_size"),
            hidden=config.positive("hidden_size"),
            layers=layers,
            heads=config.positive("num_attention_heads"),
            kv_heads=config.kv_heads(),
            head_dim=dim,
            ffn=config.positive("intermediate_size"),
            eps=config.number("layer_norm_eps", 1e-5),
            activation=config.activation("hidden_act", "silu"),
            max_len=config.max_len(),
            attention_scale=dim**-0.5,
            ropes=(rope,) * layers,
            windows=(None,) * layers,
            tied=config.boolean("tie_word_embeddings", False),
            qkv_bias=config.boolean("use_qkv_bias", False),
            qk_norm=config.boolean("qk_layernorm", False),
            parallel=config.boolean("use_parallel_residual", False),
        )
