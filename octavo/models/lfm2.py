"""LFM2: gated short convolutions, and attention in some layers."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.layers import (
    Block,
    CausalLM,
    FirstOf,
    GatedConvolution,
    ModelSpec,
    SequentialBlock,
    WeightSource,
    standard_attention,
    standard_mlp,
    standard_norm,
    standard_weights,
)
from octavo.models.config_reader import Config

CONVOLUTION = "conv"  # as layer_types names it


class Lfm2(CausalLM):
    """A decoder whose blocks convolve or attend."""

    def block(self, layer: int) -> Block:
        spec = self.spec
        mixer: GatedConvolution | None = None
        if spec.convolutions[layer]:
            mixer = GatedConvolution(spec.hidden, spec.kernel, bias=spec.kernel_bias)
        return SequentialBlock(
            standard_norm(spec),
            mixer or standard_attention(spec, layer),
            standard_norm(spec),
            standard_mlp(spec, layer),
        )

    def weights(self) -> Mapping[str, WeightSource]:
        layer = "model.layers.*."
        attention, mlp = layer + "self_attn.", layer + "feed_forward."
        return {
            **standard_weights(self.spec),
            "blocks.*.attn_norm": layer + "operator_norm",
            "blocks.*.attn.attend.q_norm": attention + "q_layernorm",
            "blocks.*.attn.attend.k_norm": attention + "k_layernorm",
            "blocks.*.attn.into": layer + "conv.in_proj",
            "blocks.*.attn.conv": layer + "conv.conv",
            "blocks.*.attn.out": FirstOf((attention + "out_proj", layer + "conv.out_proj")),
            "blocks.*.mlp_norm": layer + "ffn_norm",
            "blocks.*.mlp.gate_up": (mlp + "w1", mlp + "w3"),
            "blocks.*.mlp.down": mlp + "w2",
            "norm": "model.embedding_norm",
        }

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """Read which layers convolve, and the size of the MLP, which is stated indirectly."""
        layers, dim = config.layers(), config.head_dim()
        tied = config.boolean("tie_embedding", config.boolean("tie_word_embeddings", True))
        return config.standard_spec(
            ffn=_ffn(config),
            eps=config.number("norm_eps", 1e-5),
            activation="silu",
            ropes=(config.rope(dim, theta=1_000_000.0),) * layers,
            qkv_bias=False,
            out_bias=False,
            qk_norm=True,
            tied=tied,
            convolutions=_convolutions(config, layers),
            kernel=config.positive("conv_L_cache", 3),
            kernel_bias=config.boolean("conv_bias", False),
        )


def _ffn(config: Config) -> int:
    size = config.positive("block_ff_dim", config.integer("intermediate_size", 12_288))
    if not config.boolean("block_auto_adjust_ff_dim", True):
        return size
    factor = config.above("block_ffn_dim_multiplier", 0.0, 1.0)
    multiple = config.positive("block_multiple_of", 256)
    return max(1, -(-int(factor * int(2 * size / 3)) // multiple)) * multiple


def _convolutions(config: Config, layers: int) -> tuple[bool, ...]:
    """Read for each layer whether it convolves."""
    kinds = config.layer_kinds(layers, CONVOLUTION)
    if kinds is None:
        full = config.numbers("full_attn_idxs") if config.has("full_attn_idxs") else range(layers)
        return tuple(layer not in full for layer in range(layers))
    return tuple(kind == CONVOLUTION for kind in kinds)
