"""GPT-NeoX: NeoX 20B and Pythia, with queries, keys and values fused head by head."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.layers import CausalLM, ModelSpec, StoredTensor, WeightSource, grouped_rows
from octavo.models.config_reader import Config


class GPTNeoX(CausalLM):
    """A decoder of standard blocks with plain MLPs."""

    ignored = (
        "gpt_neox.layers.*.attention.bias",  # the causal mask, stored as a tensor
        "gpt_neox.layers.*.attention.masked_bias",
        "gpt_neox.layers.*.attention.rotary_emb.inv_freq",
    )

    def weights(self) -> Mapping[str, WeightSource]:
        block, spec = "gpt_neox.layers.*.", self.spec
        rows = grouped_rows(spec.heads, spec.heads, spec.head_dim)
        return {
            "embed": "gpt_neox.embed_in",
            "blocks.*.attn_norm": block + "input_layernorm",
            "blocks.*.attn.qkv": StoredTensor(block + "attention.query_key_value", rows),
            "blocks.*.attn.out": block + "attention.dense",
            "blocks.*.mlp_norm": block + "post_attention_layernorm",
            "blocks.*.mlp.up": block + "mlp.dense_h_to_4h",
            "blocks.*.mlp.down": block + "mlp.dense_4h_to_h",
            "norm": "gpt_neox.final_layer_norm",
            "head": "embed_out",
        }

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """Read the spec; older files use the keys rotary_pct and rotary_emb_base."""
        layers, share = config.layers(), config.number("rotary_pct", 0.25)
        rope = config.rope(config.head_dim(), theta_key="rotary_emb_base", share=share)
        bias = config.boolean("attention_bias", True)
        return config.standard_spec(
            kv_heads=config.positive("num_attention_heads"),
            eps=config.number("layer_norm_eps", 1e-5),
            activation=config.activation("hidden_act", "gelu"),
            ropes=(rope,) * layers,
            qkv_bias=bias,
            out_bias=bias,
            mlp_bias=True,
            gated=False,
            norm="layer",
            parallel=config.boolean("use_parallel_residual", True),
        )
