"""Llama with experts in place of MLPs: Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from octavo.layers import (
    CausalLM,
    ExpertSpec,
    FirstOf,
    ModelSpec,
    Routing,
    Slices,
    WeightSource,
    standard_weights,
)
from octavo.models.config_reader import Config, ConfigurationError


class Mixture(CausalLM):
    """A decoder of standard blocks, most of them with experts."""

    ignored = ("model.layers.*.self_attn.rotary_emb.inv_freq",)

    def weights(self) -> Mapping[str, WeightSource]:
        mlp, mixtral = "model.layers.*.mlp.", "model.layers.*.block_sparse_moe."
        one, mixtral_one = mlp + "experts.@.", mixtral + "experts.@."
        shared = mlp + "shared_expert."
        return {
            **standard_weights(self.spec),
            # Most checkpoints have a tensor for each expert, Mixtral's under other names. Some have
            # one tensor for all experts.
            "blocks.*.mlp.router": FirstOf((mlp + "gate", mixtral + "gate")),
            "blocks.*.mlp.experts.gate_up_weight": FirstOf(
                (
                    Slices((one + "gate_proj.weight", one + "up_proj.weight")),
                    Slices((mixtral_one + "w1.weight", mixtral_one + "w3.weight")),
                    mlp + "experts.gate_up_proj",
                )
            ),
            "blocks.*.mlp.experts.down_weight": FirstOf(
                (
                    Slices((one + "down_proj.weight",)),
                    Slices((mixtral_one + "w2.weight",)),
                    mlp + "experts.down_proj",
                )
            ),
            "blocks.*.mlp.shared.gate_up": (shared + "gate_proj", shared + "up_proj"),
            "blocks.*.mlp.shared.down": shared + "down_proj",
            "blocks.*.mlp.shared_gate": mlp + "shared_expert_gate",
        }

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """Read the fields that the families share, then those of one family."""
        kind, layers = config.architecture("MixtralForCausalLM"), config.layers()
        spec = config.standard_spec(eps=config.number("rms_norm_eps", 1e-5))
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
        is_windowed = config.boolean("use_sliding_window", False)
        window = (config.integer("sliding_window", 0) or None) if is_windowed else None
        return replace(
            spec,
            qk_norm=True,
            windows=(window,) * layers,
            experts=_some_layers(config, layers),
        )


def _experts(config: Config, ffn: int, *, normalise: bool = False, shared: int = 0) -> ExpertSpec:
    """Read the number of experts, and how many of them a token passes."""
    count, top_k = config.experts(
        "num_experts" if config.has("num_experts") else "num_local_experts"
    )
    normalise = config.boolean("norm_topk_prob", normalise)
    return ExpertSpec(count, ffn, Routing(top_k, normalise=normalise), shared)


def _some_layers(config: Config, layers: int, shared: str = "") -> tuple[ExpertSpec | None, ...]:
    """Apply Qwen's rule: experts in every `decoder_sparse_step`-th layer but the listed ones."""
    dense = config.numbers("mlp_only_layers") if config.has("mlp_only_layers") else ()
    step = config.positive("decoder_sparse_step", 1)
    ffn = config.positive("moe_intermediate_size")
    experts = _experts(config, ffn, shared=config.integer(shared, 0) if shared else 0)
    return tuple(
        experts if (layer + 1) % step == 0 and layer not in dense else None
        for layer in range(layers)
    )
