"""GLM-4 of 2025: norms before and after attention and MLP, half of each head rotated.

The first GLM-4 has only the norms before, and is in llama.py.
"""

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
from octavo.models.config_reader import Config


class Glm4(CausalLM):
    """A decoder of sandwich blocks."""

    def block(self, layer: int) -> Block:
        return sandwich_block(self.spec, layer)

    def weights(self) -> Mapping[str, WeightSource]:
        layer = "model.layers.*."
        return {
            **standard_weights(self.spec),
            "blocks.*.attn_out_norm": layer + "post_self_attn_layernorm",
            "blocks.*.mlp_norm": layer + "post_attention_layernorm",
            "blocks.*.mlp_out_norm": layer + "post_mlp_layernorm",
        }

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """Read the spec; half of each head rotates unless the file says otherwise."""
        layers, dim = config.layers(), config.head_dim()
        return config.standard_spec(
            eps=config.number("rms_norm_eps", 1.5625e-7),
            ropes=(config.rope(dim, share=0.5, interleaved=True),) * layers,
            qkv_bias=config.boolean("attention_bias", True),
            out_bias=False,
            fused_gate_up=True,
        )
