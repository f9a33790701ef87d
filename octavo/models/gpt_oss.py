"""gpt-oss: experts with biases, attention with sinks, every other layer seeing only a window."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.layers import (
    AnyOf,
    CausalLM,
    Embedding,
    From,
    Linear,
    PagedAttention,
    QKVLinear,
    RMSNorm,
    Routing,
    SelfAttention,
    SequentialBlock,
    SparseMLP,
)
from octavo.layers.weight_names import WeightSource
from octavo.models.config_reader import Config, ConfigurationError
from octavo.models.spec import ExpertSpec, ModelSpec


class Attention(SelfAttention):
    """Self-attention in which a part of each query's attention goes to nothing: the sink's."""

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
            has_sinks=True,
        )
        self.out = Linear(heads * dim, spec.hidden, bias=spec.out_bias, shard="in")


class Block(SequentialBlock):
    """Attention and experts."""

    def __init__(self, spec: ModelSpec, experts: ExpertSpec, layer: int) -> None:
        mlp = SparseMLP(
            spec.hidden,
            experts.ffn,
            experts.experts,
            experts.routing,
            spec.activation,
            router_bias=True,
            expert_bias=True,
        )
        super().__init__(
            RMSNorm(spec.hidden, spec.eps),
            Attention(spec, layer),
            RMSNorm(spec.hidden, spec.eps),
            mlp,
        )


class GptOss(CausalLM):
    """The whole decoder."""

    architectures = ("GptOssForCausalLM",)

    def __init__(self, spec: ModelSpec) -> None:
        self.ffn = spec.ffn
        self.embed = Embedding(spec.vocabulary, spec.hidden)
        self.blocks = [
            Block(spec, experts, layer)
            for layer, experts in enumerate(spec.experts)
            if experts is not None
        ]
        self.norm = RMSNorm(spec.hidden, spec.eps)
        self.head = Linear(spec.hidden, spec.vocabulary, shard="out")
        self.tied = spec.tied

    def weights(self) -> Mapping[str, WeightSource]:
        attention, mlp = "model.layers.*.self_attn.", "model.layers.*.mlp."
        gate_up, down = mlp + "experts.gate_up_proj", mlp + "experts.down_proj"
        # A gate's row and an up's row take turns. Plain weights are stored [experts, in, out],
        # those in four bits [experts, out, in].
        rows = (*range(0, 2 * self.ffn, 2), *range(1, 2 * self.ffn, 2))
        return {
            "embed": "model.embed_tokens",
            "blocks.*.attn_norm": "model.layers.*.input_layernorm",
            "blocks.*.attn.qkv": tuple(attention + name for name in ("q_proj", "k_proj", "v_proj")),
            "blocks.*.attn.attend.sinks": attention + "sinks",
            "blocks.*.attn.out": attention + "o_proj",
            "blocks.*.mlp_norm": "model.layers.*.post_attention_layernorm",
            "blocks.*.mlp.router": mlp + "router",
            "blocks.*.mlp.experts.gate_up_weight": AnyOf(
                (From(gate_up, rows, transposed=True), From(gate_up + "_blocks", rows))
            ),
            "blocks.*.mlp.experts.gate_up_bias": From(gate_up + "_bias", rows),
            "blocks.*.mlp.experts.down_weight": AnyOf(
                (From(down, transposed=True), From(down + "_blocks"))
            ),
            "blocks.*.mlp.experts.down_bias": down + "_bias",
            "norm": "model.norm",
            "head": "lm_head",
        }

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """What a gpt-oss config.json says."""
        layers, dim = config.layers(), config.head_dim()
        for key, value in (("swiglu_limit", 7.0), ("swiglu_alpha", 1.702)):
            if config.number(key, value) != value:
                raise ConfigurationError(f"config: {key} must be {value:g} for gpt-oss")
        top_k, count = config.positive("num_experts_per_tok"), config.positive("num_local_experts")
        if top_k > count:
            raise ConfigurationError(f"config: {top_k} of {count} experts cannot be chosen")
        ffn, bias = config.positive("intermediate_size"), config.boolean("attention_bias", True)
        return ModelSpec(
            vocabulary=config.positive("vocab_size"),
            hidden=config.positive("hidden_size"),
            layers=layers,
            heads=config.positive("num_attention_heads"),
            kv_heads=config.kv_heads(),
            head_dim=dim,
            ffn=ffn,
            eps=config.number("rms_norm_eps", 1e-5),
            activation="clamped_swiglu",
            max_len=config.max_len(),
            attention_scale=dim**-0.5,
            ropes=(config.rope(dim, theta=150_000.0),) * layers,
            windows=config.windows(layers, period=2),
            tied=config.boolean("tie_word_embeddings", False),
            qkv_bias=bias,
            out_bias=bias,
            experts=(ExpertSpec(count, ffn, Routing(top_k, scores="chosen")),) * layers,
        )
