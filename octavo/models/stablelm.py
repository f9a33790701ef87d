"""StableLM: Llama with LayerNorms, a part of each head rotated, and optional norms by head."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.layers import CausalLM, ModelSpec, Slices, WeightSource, standard_weights
from octavo.models.config_reader import Config


class StableLM(CausalLM):
    """A decoder of standard blocks; attention and MLP in parallel share one norm."""

    ignored = ("model.layers.*.self_attn.rotary_emb.inv_freq",)

    def weights(self) -> Mapping[str, WeightSource]:
        attention = "model.layers.*.self_attn."
        return {
            **standard_weights(self.spec),
            "blocks.*.attn.attend.q_norm": Slices((attention + "q_layernorm.norms.@",)),
            "blocks.*.attn.attend.k_norm": Slices((attention + "k_layernorm.norms.@",)),
        }

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """Read the spec; a quarter of each head rotates unless the file says otherwise."""
        return config.standard_spec(
            eps=config.number("layer_norm_eps", 1e-5),
            ropes=(config.rope(config.head_dim(), share=0.25),) * config.layers(),
            qkv_bias=config.boolean("use_qkv_bias", False),
            out_bias=False,
            norm="layer",
            qk_norm=config.boolean("qk_layernorm", False),
            parallel=config.boolean("use_parallel_residual", False),
            parallel_norms=1,
        )
