"""gpt-oss: experts with biases, attention with sinks, a window in every other layer."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.layers import (
    CausalLM,
    ExpertSpec,
    FirstOf,
    ModelSpec,
    Routing,
    StoredTensor,
    WeightSource,
    standard_weights,
)
from octavo.models.config_reader import Config, ConfigurationError


class GptOss(CausalLM):
    """A decoder of standard blocks with experts."""

    def weights(self) -> Mapping[str, WeightSource]:
        attention, mlp = "model.layers.*.self_attn.", "model.layers.*.mlp."
        gate_up, down = mlp + "experts.gate_up_proj", mlp + "experts.down_proj"
        # Rows of gate and up alternate. Plain weights are stored as [experts, in, out], those in
        # four bits as [experts, out, in].
        rows = (*range(0, 2 * self.spec.ffn, 2), *range(1, 2 * self.spec.ffn, 2))
        return {
            **standard_weights(self.spec),
            "blocks.*.attn.attend.sinks": attention + "sinks",
            "blocks.*.mlp.router": mlp + "router",
            "blocks.*.mlp.experts.gate_up_weight": FirstOf(
                (
                    StoredTensor(gate_up, rows, transposed=True),
                    StoredTensor(gate_up + "_blocks", rows),
                )
            ),
            "blocks.*.mlp.experts.gate_up_bias": StoredTensor(gate_up + "_bias", rows),
            "blocks.*.mlp.experts.down_weight": FirstOf(
                (StoredTensor(down, transposed=True), down + "_blocks")
            ),
            "blocks.*.mlp.experts.down_bias": down + "_bias",
        }

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """Read the spec; the constants of the activation cannot be changed."""
        layers, dim = config.layers(), config.head_dim()
        for key, value in (("swiglu_limit", 7.0), ("swiglu_alpha", 1.702)):
            if (stated := config.number(key, value)) != value:
                raise ConfigurationError(
                    f"config: {key} must be {value:g} for gpt-oss, is {stated:g}"
                )
        count, top_k = config.experts("num_local_experts")
        experts = ExpertSpec(
            count,
            config.positive("intermediate_size"),
            Routing(top_k, scores="chosen"),
            bias=True,
        )
        bias = config.boolean("attention_bias", True)
        return config.standard_spec(
            eps=config.number("rms_norm_eps", 1e-5),
            activation="clamped_swiglu",
            ropes=(config.rope(dim, theta=150_000.0),) * layers,
            windows=config.windows(layers, period=2),
            qkv_bias=bias,
            out_bias=bias,
            sinks=True,
            experts=(experts,) * layers,
        )
