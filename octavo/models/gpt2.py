"""GPT-2: learned positions, plain MLPs, biases everywhere."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.layers import (
    Batch,
    CausalLM,
    ModelSpec,
    PositionEmbedding,
    StoredTensor,
    Value,
    WeightSource,
)
from octavo.models.config_reader import Config, ConfigurationError


class GPT2(CausalLM):
    """A decoder that adds an embedding of positions to that of tokens."""

    # The first published checkpoints lack the prefix.
    renames = tuple((name, f"transformer.{name}") for name in ("h.", "wte.", "wpe.", "ln_f."))
    # The causal mask, stored as a tensor.
    ignored = ("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias")

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.position = PositionEmbedding(spec.max_len, spec.hidden)

    def enter(self, batch: Batch) -> Value:
        return self.embed(batch.token_ids) + self.position(batch.positions)

    def weights(self) -> Mapping[str, WeightSource]:
        block = "transformer.h.*."
        return {
            "embed": "transformer.wte",
            "position": "transformer.wpe",
            "blocks.*.attn_norm": block + "ln_1",
            "blocks.*.attn.qkv": StoredTensor(block + "attn.c_attn", transposed=True),
            "blocks.*.attn.out": StoredTensor(block + "attn.c_proj", transposed=True),
            "blocks.*.mlp_norm": block + "ln_2",
            "blocks.*.mlp.up": StoredTensor(block + "mlp.c_fc", transposed=True),
            "blocks.*.mlp.down": StoredTensor(block + "mlp.c_proj", transposed=True),
            "norm": "transformer.ln_f",
            "head": "lm_head",
        }

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """Read the spec from GPT-2's own keys."""
        hidden, heads = config.positive("n_embd"), config.positive("n_head")
        layers = config.layers("n_layer")
        if hidden % heads:
            raise ConfigurationError(
                f"{config.name_of('n_embd')} {hidden} does not divide into {heads} heads, the "
                f"value of {config.name_of('n_head')}"
            )
        for key, usual in (
            ("scale_attn_weights", True),
            ("scale_attn_by_inverse_layer_idx", False),
            ("add_cross_attention", False),
        ):
            if config.boolean(key, usual) is not usual:
                raise ConfigurationError(f"config: {key} = {not usual} is not supported for GPT-2")
        return ModelSpec(
            vocabulary=config.positive("vocab_size"),
            hidden=hidden,
            layers=layers,
            heads=heads,
            kv_heads=heads,
            head_dim=hidden // heads,
            ffn=config.positive("n_inner", 4 * hidden),
            eps=config.number("layer_norm_epsilon", 1e-5),
            activation=config.activation("activation_function", "gelu_new"),
            max_len=config.positive("n_positions", 1024),
            attention_scale=(hidden // heads) ** -0.5,
            ropes=(None,) * layers,
            windows=(None,) * layers,
            tied=config.boolean("tie_word_embeddings", True),
            qkv_bias=True,
            out_bias=True,
            mlp_bias=True,
            gated=False,
            norm="layer",
        )
