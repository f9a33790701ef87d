"""The Llama family: Llama 2 and 3, Mistral, Yi, SmolLM 2 and 3, Qwen 2 and 3, Granite 3, Phi 3/4.

Also the first Gemma and GLM-4 in its first form: pre-norms, a gated MLP, and fields of the spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from octavo.layers import (
    Batch,
    Block,
    CausalLM,
    Embedding,
    GatedMLP,
    Linear,
    PagedAttention,
    QKVLinear,
    RMSNorm,
    SelfAttention,
    Value,
)
from octavo.layers.weight_names import WeightSource
from octavo.models.config_reader import Config, ConfigurationError, refuse_encoder
from octavo.models.spec import ModelSpec

# Who sees through the window that the file states, and whether it does so unless told otherwise;
# the others' files may state one all the same, which means nothing.
WINDOWED = {
    "MistralForCausalLM": True,
    "Phi3ForCausalLM": True,
    "Qwen2ForCausalLM": False,
    "Qwen3ForCausalLM": False,
    "SmolLM3ForCausalLM": False,
}
# Whose head is the embedding unless the file says otherwise.
TIED = ("GemmaForCausalLM", "SmolLM3ForCausalLM")


class Attention(SelfAttention):
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
            q_norm=RMSNorm(dim, spec.eps, spec.norm_offset) if spec.qk_norm else None,
            k_norm=RMSNorm(dim, spec.eps, spec.norm_offset) if spec.qk_norm else None,
        )
        self.out = Linear(heads * dim, spec.hidden, bias=spec.out_bias, shard="in")


class DecoderBlock(Block):
    """Attention and a gated MLP, each behind a norm, each added to the residual stream."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        self.scale = spec.residual_scale
        self.attn_norm = RMSNorm(spec.hidden, spec.eps, spec.norm_offset)
        self.attn = Attention(spec, layer)
        self.mlp_norm = RMSNorm(spec.hidden, spec.eps, spec.norm_offset)
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
        "Phi3ForCausalLM",
        "GlmForCausalLM",
        "GemmaForCausalLM",
    )
    ignored = ("model.layers.*.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq")

    def __init__(self, spec: ModelSpec) -> None:
        self.embed = Embedding(spec.vocabulary, spec.hidden, spec.embed_scale)
        self.blocks = [DecoderBlock(spec, layer) for layer in range(spec.layers)]
        self.norm = RMSNorm(spec.hidden, spec.eps, spec.norm_offset)
        self.head = Linear(spec.hidden, spec.vocabulary, shard="out")
        self.tied, self.logit_scale = spec.tied, spec.logit_scale
        self.fused_qkv, self.fused_gate_up = spec.fused_qkv, spec.fused_gate_up

    def weights(self) -> Mapping[str, WeightSource]:
        attention, mlp = "model.layers.*.self_attn.", "model.layers.*.mlp."
        qkv = ("qkv_proj",) if self.fused_qkv else ("q_proj", "k_proj", "v_proj")
        gate_up = ("gate_up_proj",) if self.fused_gate_up else ("gate_proj", "up_proj")
        return {
            "embed": "model.embed_tokens",
            "blocks.*.attn_norm": "model.layers.*.input_layernorm",
            "blocks.*.attn.qkv": tuple(attention + name for name in qkv),
            "blocks.*.attn.attend.q_norm": attention + "q_norm",
            "blocks.*.attn.attend.k_norm": attention + "k_norm",
            "blocks.*.attn.out": attention + "o_proj",
            "blocks.*.mlp_norm": "model.layers.*.post_attention_layernorm",
            "blocks.*.mlp.gate_up": tuple(mlp + name for name in gate_up),
            "blocks.*.mlp.down": mlp + "down_proj",
            "norm": "model.norm",
            "head": "lm_head",
        }

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """What the members of the family say in the same words, then what each has of its own."""
        kind = (config.strings("architectures") or ("LlamaForCausalLM",))[0]
        layers, dim = config.layers(), config.head_dim()
        bias = config.boolean("attention_bias", False)
        windows: tuple[int | None, ...] = (None,) * layers
        if kind in WINDOWED:
            windows = config.windows(layers, used=WINDOWED[kind])
        spec = ModelSpec(
            vocabulary=config.positive("vocab_size"),
            hidden=config.positive("hidden_size"),
            layers=layers,
            heads=config.positive("num_attention_heads"),
            kv_heads=config.kv_heads(),
            head_dim=dim,
            ffn=config.positive("intermediate_size"),
            eps=config.number("rms_norm_eps", 1e-6),
            activation=config.activation("hidden_act", "silu"),
            max_len=config.max_len(),
            attention_scale=dim**-0.5,
            ropes=(config.rope(dim),) * layers,
            windows=windows,
            tied=config.boolean("tie_word_embeddings", kind in TIED),
            qkv_bias=bias,
            out_bias=bias,
            mlp_bias=config.boolean("mlp_bias", False),
        )
        return replace(spec, **_own(kind, config, spec))


def _own(kind: str, config: Config, spec: ModelSpec) -> dict[str, Any]:
    """The fields that only one member of the family has."""
    match kind:
        case "Qwen2ForCausalLM":
            return {"qkv_bias": True}
        case "Qwen3ForCausalLM":
            return {"qk_norm": True}
        case "SmolLM3ForCausalLM":
            every = config.positive("no_rope_layer_interval", 4)
            turns = [1.0 * bool((layer + 1) % every) for layer in range(spec.layers)]
            if config.has("no_rope_layers"):  # despite its name, 1 where a layer turns
                turns = [*config.numbers("no_rope_layers")]
            if len(turns) != spec.layers:
                raise ConfigurationError(
                    f"config: {len(turns)} no_rope_layers for {spec.layers} layers"
                )
            pairs = zip(spec.ropes, turns, strict=True)
            return {"ropes": tuple(rope if turn else None for rope, turn in pairs)}
        case "GraniteForCausalLM":
            return {
                "attention_scale": config.number("attention_multiplier", 1.0),
                "embed_scale": config.number("embedding_multiplier", 1.0),
                "residual_scale": config.number("residual_multiplier", 1.0),
                "logit_scale": 1.0 / config.above("logits_scaling", 0.0, 1.0),
            }
        case "Phi3ForCausalLM":
            eps = config.number("rms_norm_eps", 1e-5)
            return {"eps": eps, "fused_qkv": True, "fused_gate_up": True}
        case "GlmForCausalLM":
            return {
                "eps": config.number("rms_norm_eps", 1.5625e-7),
                "ropes": (config.rope(spec.head_dim, share=0.5, interleaved=True),) * spec.layers,
                "qkv_bias": config.boolean("attention_bias", True),
                "out_bias": False,
                "fused_gate_up": True,
            }
        case "GemmaForCausalLM":
            refuse_encoder(config)
            said = config.activation("hidden_activation", config.activation("hidden_act", "gelu"))
            return {
                "embed_scale": config.rounded(spec.hidden**0.5),
                "norm_offset": 1.0,
                # Its first files say gelu and mean the approximation it was trained with.
                "activation": "gelu_pytorch_tanh" if said == "gelu" else said,
            }
    return {}
