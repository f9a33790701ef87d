"""The Llama family: Llama 2 and 3, Mistral, Yi, SmolLM 2 and 3, Qwen 2 and 3, Granite 3, Phi 3/4.

Also MiMo, the first Gemma and the first GLM-4: a norm before attention and before a gated MLP.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from octavo.layers import CausalLM, ModelSpec
from octavo.models.config_reader import Config, ConfigurationError, refuse_encoder

# The architectures that use the file's sliding_window, and whether they use it by default.
# The files of the others may contain one, which means nothing.
WINDOWED = {
    "MistralForCausalLM": True,
    "Phi3ForCausalLM": True,
    "Qwen2ForCausalLM": False,
    "Qwen3ForCausalLM": False,
    "MiMoForCausalLM": False,
    "SmolLM3ForCausalLM": False,
}
# The architectures whose head is the embedding by default.
TIED = ("GemmaForCausalLM", "SmolLM3ForCausalLM")


class Llama(CausalLM):
    """A decoder of standard blocks."""

    ignored = (
        "model.layers.*.self_attn.rotary_emb.inv_freq",
        "model.rotary_emb.inv_freq",
        "model.mtp_layers.*",  # of MiMo, for drafts
    )

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """Read the fields that all members share, then those of one member."""
        kind = config.architecture("LlamaForCausalLM")
        own: dict[str, Any] = {}
        if kind in WINDOWED:
            own["windows"] = config.windows(config.layers(), used=WINDOWED[kind])
        spec = config.standard_spec(
            tied=config.boolean("tie_word_embeddings", kind in TIED),
            mlp_bias=config.boolean("mlp_bias", False),
            **own,
        )
        return replace(spec, **_own_fields(kind, config, spec))


def _own_fields(kind: str, config: Config, spec: ModelSpec) -> dict[str, Any]:
    """Return the fields that only one member of the family has."""
    match kind:
        case "Qwen2ForCausalLM" | "MiMoForCausalLM":
            return {"qkv_bias": True}
        case "Qwen3ForCausalLM":
            return {"qk_norm": True}
        case "SmolLM3ForCausalLM":
            return {"ropes": _some_ropes(config, spec)}
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
            name = config.activation("hidden_activation", config.activation("hidden_act", "gelu"))
            return {
                "embed_scale": config.rounded(spec.hidden**0.5),
                "norm_offset": 1.0,
                # The first files name gelu, but the model was trained with the approximation.
                "activation": "gelu_pytorch_tanh" if name == "gelu" else name,
            }
    return {}


def _some_ropes(config: Config, spec: ModelSpec) -> tuple[Any, ...]:
    """Return SmolLM3's rotations: most layers have one."""
    period = config.positive("no_rope_layer_interval", 4)
    rotated = [1.0 * bool((layer + 1) % period) for layer in range(spec.layers)]
    if config.has("no_rope_layers"):  # despite its name, 1 where a layer rotates
        rotated = [*config.numbers("no_rope_layers")]
    if len(rotated) != spec.layers:
        raise ConfigurationError(
            f"config: {len(rotated)} no_rope_layers for {spec.layers} layers; give one for each"
        )
    return tuple(rope if flag else None for rope, flag in zip(spec.ropes, rotated, strict=True))
