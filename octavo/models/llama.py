"""The Llama family: Llama 2 and 3, Mistral, Yi, SmolLM 2 and 3, Qwen 2 and 3, Granite 3."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.layers import (
    Batch,
    CausalLM,
    Embedding,
    GatedMLP,
    Linear,
    Module,
    PagedAttention,
    QKVLinear,
    RMSNorm,
    Value,
)
from octavo.layers.weights import WeightSource
from octavo.models.config import Config
from octavo.models.spec import ModelSpec


class Attention(Module):
    """Self-attention; which layers turn by position, and how far they see, the spec says."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        heads, kv_heads, dim = spec.heads, spec.kv_heads, spec.head_dim
        self.qkv = QKVLinear(spec.hidden, heads, kv_heads, dim, bias=spec.qkv_bias)
        self.attend = PagedAttention(
            heads,
            kv_heads,
            dim,
            scale=spec.attention_scale,
            rope=spec.ropes[layer],
            window=spec.windows[layer],
            q_norm=RMSNorm(dim, spec.eps) if spec.qk_norm else None,
            k_norm=RMSNorm(dim, spec.eps) if spec.qk_norm else None,
        )
        self.out = Linear(heads * dim, spec.hidden, bias=spec.out_bias, shard="in")

    def __call__(self, x: Value, batch: Batch) -> Value:
        return self.out(self.attend(self.qkv(x), batch))


class Block(Module):
    """Attention and a gated MLP, each behind a norm, each added to the residual stream."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        self.scale = spec.residual_scale
        self.attn_norm = RMSNorm(spec.hidden, spec.eps)
        self.attn = Attention(spec, layer)
        self.mlp_norm = RMSNorm(spec.hidden, spec.eps)
        self.mlp = GatedMLP(spec.hidden, spec.ffn, spec.activation, bias=spec.mlp_bias)

    def __call__(self, x: Value, residual: Value | None, batch: Batch) -> tuple[Value, Value]:
        x, residual = self.attn_norm.add(x, residual)
        x, residual = self.mlp_norm.add(self._scaled(self.attn(x, batch)), residual)
        return self._scaled(self.mlp(x)), residual

    def _scaled(self, x: Value) -> Value:
        return x if self.scale == 1.0 else x * self.scale


class Llama(CausalLM):
    """The whole decoder."""

    architectures = (
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "SmolLM3ForCausalLM",
        "GraniteForCausalLM",
    )
    ignored = ("model.layers.*.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq")

    def __init__(self, spec: ModelSpec) -> None:
        self.embed = Embedding(spec.vocabulary, spec.hidden, spec.embed_scale)
        self.blocks = [Block(spec, layer) for layer in range(spec.layers)]
        self.norm = RMSNorm(spec.hidden, spec.eps)
        self.head = Linear(spec.hidden, spec.vocabulary, shard="out")
        self.tied, self.logit_scale = spec.tied, spec.logit_scale

    def hidden(self, batch: Batch) -> Value:
        x, residual = self.embed(batch.token_ids), None
        for block in self.blocks:
            x, residual = block(x, residual, batch)
        return self.norm.add(x, residual)[0]

    def weights(self) -> Mapping[str, WeightSource]:
        attention, mlp = "model.layers.*.self_attn.", "model.layers.*.mlp."
        return {
            "embed": "model.embed_tokens",
            "blocks.*.attn_norm": "model.layers.*.input_layernorm",
            "blocks.*.attn.qkv": tuple(attention + name for name in ("q_proj", "k_proj", "v_proj")),
            "blocks.*.attn.attend.q_norm": attention + "q_norm",
            "blocks.*.attn.attend.k_norm": attention + "k_norm",
            "blocks.*.attn.out": attention + "o_proj",
            "blocks.*.mlp_norm": "model.layers.*.post_attention_layernorm",
            "blocks.*.mlp.gate_up": (mlp + "gate_proj", mlp + "up_proj"),
            "blocks.*.mlp.down": mlp + "down_proj",
            "norm": "model.norm",
            "head": "lm_head",
        }

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """What the variants of the family say in their config.json."""
        kind = (config.strings("architectures") or ("LlamaForCausalLM",))[0]
        layers, dim = config.positive("num_hidden_layers"), config.head_dim()
        is_granite, is_qwen2 = kind == "GraniteForCausalLM", kind == "Qwen2ForCausalLM"
        bias = config.boolean("attention_bias", False)
        rope = config.rope(dim)
        turns = [True] * layers
        if kind == "SmolLM3ForCausalLM" and config.has("no_rope_layers"):
            turns = [flag != 0 for flag in config.numbers("no_rope_layers")]
        return ModelSpec(
            vocabulary=config.positive("vocab_size"),
            hidden=config.positive("hidden_size"),
            layers=layers,
            heads=config.positive("num_attention_heads"),
            kv_heads=config.kv_heads(),
            head_dim=dim,
            ffn=config.positive("intermediate_size"),
            eps=config.number("rms_norm_eps", 1e-6),
            activation=config.string("hidden_act", "silu"),
            max_len=config.max_len(),
            attention_scale=config.number("attention_multiplier", dim**-0.5),
            ropes=tuple(rope if turning else None for turning in turns),
            windows=config.windows(layers),
            tied=config.boolean("tie_word_embeddings", False),
            qkv_bias=bias or is_qwen2,
            out_bias=bias,
            mlp_bias=config.boolean("mlp_bias", False),
            qk_norm=kind == "Qwen3ForCausalLM",
            embed_scale=config.number("embedding_multiplier", 1.0) if is_granite else 1.0,
            residual_scale=config.number("residual_multiplier", 1.0) if is_granite else 1.0,
            logit_scale=1.0 / config.number("logits_scaling", 1.0) if is_granite else 1.0,
        )
