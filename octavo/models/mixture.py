"""Llama with experts in place of MLPs: Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from octavo.layers import (
    AnyOf,
    CausalLM,
    Embedding,
    From,
    GatedMLP,
    Linear,
    PagedAttention,
    Pieces,
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
    """Self-attention; queries and keys may be normalised, head by head or all heads together."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        heads, kv_heads, dim = spec.heads, spec.kv_heads, spec.head_dim
        whole = spec.qk_norm_whole
        self.qkv = QKVLinear(spec.hidden, heads, kv_heads, dim, bias=spec.qkv_bias)
        self.attend = PagedAttention(
            heads,
            kv_heads,
            dim,
            scale=spec.attention_scale,
            rope=spec.ropes[layer],
            window=spec.windows[layer],
            q_norm=RMSNorm(dim * heads if whole else dim, spec.eps) if spec.qk_norm else None,
            k_norm=RMSNorm(dim * kv_heads if whole else dim, spec.eps) if spec.qk_norm else None,
            norm_whole=whole,
        )
        self.out = Linear(heads * dim, spec.hidden, bias=spec.out_bias, shard="in")


class Block(SequentialBlock):
    """Attention and experts, or an MLP in layers that have none."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        experts = spec.experts[layer]
        mlp: GatedMLP | SparseMLP = GatedMLP(spec.hidden, spec.ffn, spec.activation)
        if experts is not None:
            mlp = SparseMLP(
                spec.hidden,
                experts.ffn,
                experts.experts,
                experts.routing,
                spec.activation,
                shared_ffn=experts.shared_ffn,
                shared_gate=experts.shared_ffn > 0,
            )
        super().__init__(
            RMSNorm(spec.hidden, spec.eps),
            Attention(spec, layer),
            RMSNorm(spec.hidden, spec.eps),
            mlp,
        )


class Mixture(CausalLM):
    """The whole decoder."""

    architectures = (
        "MixtralForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3MoeForCausalLM",
        "OlmoeForCausalLM",
    )
    ignored = ("model.layers.*.self_attn.rotary_emb.inv_freq",)

    def __init__(self, spec: ModelSpec) -> None:
        self.embed = Embedding(spec.vocabulary, spec.hidden)
        self.blocks = [Block(spec, layer) for layer in range(spec.layers)]
        self.norm = RMSNorm(spec.hidden, spec.eps)
        self.head = Linear(spec.hidden, spec.vocabulary, shard="out")
        self.tied = spec.tied

    def weights(self) -> Mapping[str, WeightSource]:
        attention, mlp = "model.layers.*.self_attn.", "model.layers.*.mlp."
        mixtral, shared = "model.layers.*.block_sparse_moe.", mlp + "shared_expert."
        one = (mlp + "experts.@.", mixtral + "experts.@.")
        return {
            "embed": "model.embed_tokens",
            "blocks.*.attn_norm": "model.layers.*.input_layernorm",
            "blocks.*.attn.qkv": tuple(attention + name for name in ("q_proj", "k_proj", "v_proj")),
            "blocks.*.attn.attend.q_norm": attention + "q_norm",
            "blocks.*.attn.attend.k_norm": attention + "k_norm",
            "blocks.*.attn.out": attention + "o_proj",
            "blocks.*.mlp_norm": "model.layers.*.post_attention_layernorm",
            "blocks.*.mlp.gate_up": (mlp + "gate_proj", mlp + "up_proj"),
            "blocks.*.mlp.down": mlp + "down_proj",
            # Published expert by expert, Mixtral's under names of its own; some are saved as one.
            "blocks.*.mlp.router": AnyOf((From(mlp + "gate"), From(mixtral + "gate"))),
            "blocks.*.mlp.experts.gate_up_weight": AnyOf(
                (
                    Pieces((one[0] + "gate_proj.weight", one[0] + "up_proj.weight")),
                    Pieces((one[1] + "w1.weight", one[1] + "w3.weight")),
                    From(mlp + "experts.gate_up_proj"),
                )
            ),
            "blocks.*.mlp.experts.down_weight": AnyOf(
                (
                    Pieces((one[0] + "down_proj.weight",)),
                    Pieces((one[1] + "w2.weight",)),
                    From(mlp + "experts.down_proj"),
                )
            ),
            "blocks.*.mlp.shared.gate_up": (shared + "gate_proj", shared + "up_proj"),
            "blocks.*.mlp.shared.down": shared + "down_proj",
            "blocks.*.mlp.shared_gate": mlp + "shared_expert_gate",
            "norm": "model.norm",
            "head": "lm_head",
        }

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """What the families have in common, and then what each has of its own."""
        kind = (config.strings("architectures") or ("MixtralForCausalLM",))[0]
        layers, dim = config.layers(), config.head_dim()
        bias = config.boolean("attention_bias", False)
        spec = ModelSpec(
            vocabulary=config.positive("vocab_size"),
            hidden=config.positive("hidden_size"),
            layers=layers,
            heads=config.positive("num_attention_heads"),
            kv_heads=config.kv_heads(),
            head_dim=dim,
            ffn=config.positive("intermediate_size"),
            eps=config.number("rms_norm_eps", 1e-5),
            activation=config.activation("hidden_act", "silu"),
            max_len=config.max_len(),
            attention_scale=dim**-0.5,
            ropes=(config.rope(dim),) * layers,
            windows=(None,) * layers,
            tied=config.boolean("tie_word_embeddings", False),
            qkv_bias=bias,
            out_bias=bias,
        )
        match kind:
            case "MixtralForCausalLM":
                window = config.integer("sliding_window", 0) or None
                experts = (_experts(config, spec.ffn, normalise=True),) * layers
                return replace(spec, windows=(window,) * layers, experts=experts)
            case "OlmoeForCausalLM":
                if config.has("clip_qkv"):
                    raise ConfigurationError("config: clip_qkv is not supported for OLMoE")
                experts = (_experts(config, spec.ffn),) * layers
                return replace(spec, qk_norm=True, qk_norm_whole=True, experts=experts)
            case "Qwen2MoeForCausalLM":
                return replace(
                    spec,
                    qkv_bias=config.boolean("qkv_bias", True),
                    windows=config.windows(layers, used=False),
                    experts=_some_layers(config, layers, "shared_expert_intermediate_size"),
                )
        windowed = config.boolean("use_sliding_window", False)
        window = (config.integer("sliding_window", 0) or None) if windowed else None
        return replace(
            spec,
            qk_norm=True,
            windows=(window,) * layers,
            experts=_some_layers(config, layers),
        )


def _experts(config: Config, ffn: int, *, normalise: bool = False, shared: int = 0) -> ExpertSpec:
    """How many experts there are, and how many of them a token passes."""
    key = "num_experts" if config.has("num_experts") else "num_local_experts"
    count, top_k = config.positive(key), config.positive("num_experts_per_tok")
    if top_k > count:
        raise ConfigurationError(f"config: {top_k} of {count} experts cannot be chosen")
    normalise = config.boolean("norm_topk_prob", normalise)
    return ExpertSpec(count, ffn, Routing(top_k, normalise=normalise), shared)


def _some_layers(config: Config, layers: int, shared: str = "") -> tuple[ExpertSpec | None, ...]:
    """Qwen's rule: experts in every `decoder_sparse_step`-th layer, but not in those named."""
    dense = config.numbers("mlp_only_layers") if config.has("mlp_only_layers") else ()
    step = config.positive("decoder_sparse_step", 1)
    ffn = config.positive("moe_intermediate_size")
    experts = _experts(config, ffn, shared=config.integer(shared, 0) if shared else 0)
    return tuple(
        experts if (layer + 1) % step == 0 and layer not in dense else None
        for layer in range(layers)
    )
