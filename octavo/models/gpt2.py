"""GPT-2: learned positions, plain MLPs, biases everywhere."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.layers import (
    MLP,
    Batch,
    CausalLM,
    Embedding,
    From,
    LayerNorm,
    Linear,
    PagedAttention,
    PositionEmbedding,
    QKVLinear,
    SelfAttention,
    SequentialBlock,
    Value,
)
from octavo.layers.weight_names import WeightSource
from octavo.models.config_reader import Config, ConfigurationError
from octavo.models.spec import ModelSpec


class Attention(SelfAttention):
    """Self-attention that is told of no positions: the embedding is."""

    def __init__(self, spec: ModelSpec) -> None:
        heads, dim = spec.heads, spec.head_dim
        self.qkv = QKVLinear(spec.hidden, heads, heads, dim, bias=True)
        self.attend = PagedAttention(heads, heads, dim, scale=spec.attention_scale)
        self.out = Linear(spec.hidden, spec.hidden, bias=True, shard="in")


class Block(SequentialBlock):
    """Attention and a plain MLP."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(
            LayerNorm(spec.hidden, spec.eps),
            Attention(spec),
            LayerNorm(spec.hidden, spec.eps),
            MLP(spec.hidden, spec.ffn, spec.activation),
        )


class GPT2(CausalLM):
    """The whole decoder."""

    architectures = ("GPT2LMHeadModel",)
    # The first published ones have no beginning.
    renames = tuple((name, f"transformer.{name}") for name in ("h.", "wte.", "wpe.", "ln_f."))
    ignored = (
        "transformer.h.*.attn.bias",
        "transformer.h.*.attn.masked_bias",
    )  # the causal mask, as a tensor

    def __init__(self, spec: ModelSpec) -> None:
        self.embed = Embedding(spec.vocabulary, spec.hidden)
        self.position = PositionEmbedding(spec.max_len, spec.hidden)
        self.blocks = [Block(spec) for _ in range(spec.layers)]
        self.norm = LayerNorm(spec.hidden, spec.eps)
        self.head = Linear(spec.hidden, spec.vocabulary, shard="out")
        self.tied = spec.tied

    def enter(self, batch: Batch) -> Value:
        return self.embed(batch.token_ids) + self.position(batch.positions)

    def weights(self) -> Mapping[str, WeightSource]:
        block = "transformer.h.*."
        return {
            "embed": "transformer.wte",
            "position": "transformer.wpe",
            "blocks.*.attn_norm": block + "ln_1",
            "blocks.*.attn.qkv": From(block + "attn.c_attn", transposed=True),
            "blocks.*.attn.out": From(block + "attn.c_proj", transposed=True),
            "blocks.*.mlp_norm": block + "ln_2",
            "blocks.*.mlp.up": From(block + "mlp.c_fc", transposed=True),
            "blocks.*.mlp.down": From(block + "mlp.c_proj", transposed=True),
            "norm": "transformer.ln_f",
            "head": "lm_head",
        }

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """What a GPT-2 config.json says, in its own words."""
        hidden, heads = config.positive("n_embd"), config.positive("n_head")
        layers = config.layers("n_layer")
        if hidden % heads:
            raise ConfigurationError(f"config: n_embd {hidden} does not divide into {heads} heads")
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
        )
