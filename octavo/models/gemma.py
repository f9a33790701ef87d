"""Gemma 2 and 3: norms before and after attention and MLP, a window in most layers."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.layers import (
    Block,
    CausalLM,
    ModelSpec,
    WeightSource,
    sandwich_block,
    standard_weights,
)
from octavo.models.config_reader import FULL, SLIDING, Config, refuse_encoder

# The text part of a multimodal Gemma 3 contains only the values that differ from these.
GEMMA3_DEFAULTS = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
}


class Gemma(CausalLM):
    """A decoder of sandwich blocks; of a multimodal model, the part for text."""

    ignored = ("vision_tower.*", "multi_modal_projector.*")
    renames = (
        ("language_model.model.", "model."),
        ("language_model.lm_head.", "lm_head."),
        ("model.language_model.", "model."),
        ("model.vision_tower.", "vision_tower."),
        ("model.multi_modal_projector.", "multi_modal_projector."),
    )

    def block(self, layer: int) -> Block:
        return sandwich_block(self.spec, layer)

    def weights(self) -> Mapping[str, WeightSource]:
        layer = "model.layers.*."
        return {
            **standard_weights(self.spec),
            "blocks.*.attn_out_norm": layer + "post_attention_layernorm",
            "blocks.*.mlp_norm": layer + "pre_feedforward_layernorm",
            "blocks.*.mlp_out_norm": layer + "post_feedforward_layernorm",
        }

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """Read the spec; Gemma 3 has a rotation for full layers and one for windowed layers."""
        is_third = config.architecture("Gemma2ForCausalLM") != "Gemma2ForCausalLM"
        whole = config
        if config.has("text_config"):
            config = config.part("text_config")
        if is_third:
            config = config.over(GEMMA3_DEFAULTS)
        refuse_encoder(config)
        dim = config.head_dim()
        windows = config.windows(config.layers(), period=6 if is_third else 2)
        if is_third:
            far = config.rope(dim, theta=1e6, kind=FULL)
            near = config.rope(dim, theta_key="rope_local_base_freq", kind=SLIDING)
        else:
            far = near = config.rope(dim)
        return config.standard_spec(
            activation=config.activation("hidden_activation", "gelu_pytorch_tanh"),
            attention_scale=config.above("query_pre_attn_scalar", 0.0, 256.0) ** -0.5,
            ropes=tuple(far if window is None else near for window in windows),
            windows=windows,
            tied=config.boolean("tie_word_embeddings", whole.boolean("tie_word_embeddings", True)),
            norm_offset=1.0,  # the file has each norm's weight minus one
            qk_norm=is_third,
            attention_cap=config.optional_number("attn_logit_softcapping"),
            logit_cap=config.optional_number("final_logit_softcapping"),
            embed_scale=whole.rounded(config.positive("hidden_size") ** 0.5),
        )
