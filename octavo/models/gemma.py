"""Gemma 2 and 3: norms before and behind each half of a block, most layers seeing only a window."""

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
from octavo.models.config_reader import FULL, SLIDING, Config, refuse_encoder
from octavo.models.spec import ModelSpec

# The text half of a Gemma 3 that also sees says only where it differs from these.
GEMMA3_DEFAULTS = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
}


class Norm(RMSNorm):
    """Gemma stores each norm's weight less one."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__(size, eps, offset=1.0)


class Attention(SelfAttention):
    """Self-attention, scores soft-capped in Gemma 2, queries and keys normalised in Gemma 3."""

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
            softcap=spec.attention_cap,
            q_norm=Norm(dim, spec.eps) if spec.qk_norm else None,
            k_norm=Norm(dim, spec.eps) if spec.qk_norm else None,
        )
        self.out = Linear(heads * dim, spec.hidden, bias=spec.out_bias, shard="in")


class Block(SandwichBlock):
    """Attention and a gated MLP."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__(
            Norm(spec.hidden, spec.eps),
            Attention(spec, layer),
            Norm(spec.hidden, spec.eps),
            Norm(spec.hidden, spec.eps),
            GatedMLP(spec.hidden, spec.ffn, spec.activation),
            Norm(spec.hidden, spec.eps),
        )


class Gemma(CausalLM):
    """The whole decoder; of a model that also sees, the part that reads and writes text."""

    architectures = (
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "Gemma3ForConditionalGeneration",
    )
    ignored = ("vision_tower.*", "multi_modal_projector.*")
    renames = (
        ("language_model.model.", "model."),
        ("language_model.lm_head.", "lm_head."),
        ("model.language_model.", "model."),
        ("model.vision_tower.", "vision_tower."),
        ("model.multi_modal_projector.", "multi_modal_projector."),
    )

    def __init__(self, spec: ModelSpec) -> None:
        self.embed = Embedding(spec.vocabulary, spec.hidden, spec.embed_scale)
        self.blocks = [Block(spec, layer) for layer in range(spec.layers)]
        self.norm = Norm(spec.hidden, spec.eps)
        self.head = Linear(spec.hidden, spec.vocabulary, shard="out")
        self.tied, self.logit_cap = spec.tied, spec.logit_cap

    def weights(self) -> Mapping[str, WeightSource]:
        layer, attention = "model.layers.*.", "model.layers.*.self_attn."
        return {
            "embed": "model.embed_tokens",
            "blocks.*.attn_norm": layer + "input_layernorm",
            "blocks.*.attn.qkv": tuple(attention + name for name in ("q_proj", "k_proj", "v_proj")),
            "blocks.*.attn.attend.q_norm": attention + "q_norm",
            "blocks.*.attn.attend.k_norm": attention + "k_norm",
            "blocks.*.attn.out": attention + "o_proj",
            "blocks.*.attn_out_norm": layer + "post_attention_layernorm",
            "blocks.*.mlp_norm": layer + "pre_feedforward_layernorm",
            "blocks.*.mlp.gate_up": (layer + "mlp.gate_proj", layer + "mlp.up_proj"),
            "blocks.*.mlp.down": layer + "mlp.down_proj",
            "blocks.*.mlp_out_norm": layer + "post_feedforward_layernorm",
            "norm": "model.norm",
            "head": "lm_head",
        }

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """Gemma 2 turns all layers alike; in 3 those that see far turn slower."""
        kind = (config.strings("architectures") or ("Gemma2ForCausalLM",))[0]
        is_third = kind != "Gemma2ForCausalLM"
        whole = config
        if config.has("text_config"):
            config = config.part("text_config")
        if is_third:
            config = config.over(GEMMA3_DEFAULTS)
        refuse_encoder(config)
        layers, dim, hidden = config.layers(), config.head_dim(), config.positive("hidden_size")
        if is_third:
            far = config.rope(dim, theta=1e6, kind=FULL)
            near = config.rope(dim, theta_key="rope_local_base_freq", kind=SLIDING)
        else:
            far = near = config.rope(dim)
        windows = config.windows(layers, period=6 if is_third else 2)
        bias = config.boolean("attention_bias", False)
        return ModelSpec(
            vocabulary=config.positive("vocab_size"),
            hidden=hidden,
            layers=layers,
            heads=config.positive("num_attention_heads"),
            kv_heads=config.kv_heads(),
            head_dim=dim,
            ffn=config.positive("intermediate_size"),
            eps=config.number("rms_norm_eps", 1e-6),
            activation=config.activation("hidden_activation", "gelu_pytorch_tanh"),
            max_len=config.max_len(),
            attention_scale=config.above("query_pre_attn_scalar", 0.0, 256.0) ** -0.5,
            ropes=tuple(far if window is None else near for window in windows),
            windows=windows,
            tied=config.boolean("tie_word_embeddings", whole.boolean("tie_word_embeddings", True)),
            qkv_bias=bias,
            out_bias=bias,
            qk_norm=is_third,
            attention_cap=config.optional_number("attn_logit_softcapping"),
            logit_cap=config.optional_number("final_logit_softcapping"),
            embed_scale=whole.rounded(hidden**0.5),
        )
