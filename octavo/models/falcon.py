"""Falcon: attention and MLP in parallel, KV heads shared by all queries or by groups of them."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.layers import CausalLM, ModelSpec, StoredTensor, WeightSource, grouped_rows
from octavo.models.config_reader import Config, ConfigurationError


class Falcon(CausalLM):
    """A decoder of parallel blocks with plain MLPs."""

    ignored = ("transformer.h.*.self_attention.rotary_emb.inv_freq",)

    def weights(self) -> Mapping[str, WeightSource]:
        block, spec = "transformer.h.*.", self.spec
        rows = grouped_rows(spec.heads, spec.kv_heads, spec.head_dim)
        attn_norm = "ln_attn" if spec.parallel_norms == 2 else "input_layernorm"
        return {
            "embed": "transformer.word_embeddings",
            "blocks.*.attn_norm": block + attn_norm,
            "blocks.*.mlp_norm": block + "ln_mlp",
            "blocks.*.attn.qkv": StoredTensor(block + "self_attention.query_key_value", rows),
            "blocks.*.attn.out": block + "self_attention.dense",
            "blocks.*.mlp.up": block + "mlp.dense_h_to_4h",
            "blocks.*.mlp.down": block + "mlp.dense_4h_to_h",
            "norm": "transformer.ln_f",
            "head": "lm_head",
        }

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """Read the spec; Falcon 7B and 40B differ in their KV heads and norms."""
        if config.boolean("alibi", False) or not config.boolean("parallel_attn", True):
            raise ConfigurationError(
                "config: the Falcon-RW variants (alibi, or attention and MLP in turn) are not "
                "supported; Falcon 7B, 11B, 40B and 180B are"
            )
        heads, hidden = config.positive("num_attention_heads"), config.positive("hidden_size")
        is_grouped = config.boolean("new_decoder_architecture", False)
        kv_heads = heads
        if is_grouped:
            kv_heads = config.positive("num_kv_heads", heads)
        elif config.boolean("multi_query", True):
            kv_heads = 1
        if heads % kv_heads:
            raise ConfigurationError(
                f"{config.name_of('num_attention_heads')} {heads} does not divide among "
                f"{kv_heads} KV heads, the value of {config.name_of('num_kv_heads')}"
            )
        bias = config.boolean("bias", False)
        has_two_norms = is_grouped and config.positive("num_ln_in_parallel_attn", 2) == 2
        return config.standard_spec(
            kv_heads=kv_heads,
            ffn=config.positive("ffn_hidden_size", 4 * hidden),
            eps=config.number("layer_norm_epsilon", 1e-5),
            activation=config.activation("activation", "gelu"),
            tied=config.boolean("tie_word_embeddings", True),
            qkv_bias=bias,
            out_bias=bias,
            mlp_bias=bias,
            gated=False,
            norm="layer",
            parallel=True,
            parallel_norms=2 if has_two_norms else 1,
        )
