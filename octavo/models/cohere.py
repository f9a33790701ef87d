"""Cohere 1 and 2 (Command R): attention and MLP in parallel after one norm without bias."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.layers import (
    Batch,
    Block,
    CausalLM,
    ModelSpec,
    Value,
    WeightSource,
    standard_attention,
    standard_mlp,
    standard_norm,
    standard_weights,
)
from octavo.models.config_reader import Config


class CohereBlock(Block):
    """Attention and a gated MLP with the same input, added to the stream one after the other."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        self.norm = standard_norm(spec)
        self.attn = standard_attention(spec, layer)
        self.mlp = standard_mlp(spec, layer)

    def __call__(self, x: Value, residual: Value | None, batch: Batch) -> tuple[Value, Value]:
        x, residual = self.norm.add(x, residual)
        return self.mlp(x), residual + self.attn(x, batch)


class Cohere(CausalLM):
    """A decoder of its own kind of parallel block."""

    def block(self, layer: int) -> Block:
        return CohereBlock(self.spec, layer)

    def weights(self) -> Mapping[str, WeightSource]:
        return {
            **standard_weights(self.spec),
            "blocks.*.norm": "model.layers.*.input_layernorm",
        }

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """Read the spec; in Cohere 2, layers without a window have no rotation."""
        is_second = config.architecture("CohereForCausalLM") == "Cohere2ForCausalLM"
        layers, dim = config.layers(), config.head_dim()
        rope = config.rope(dim, theta=10_000.0 if is_second else 500_000.0, interleaved=True)
        windows = config.windows(layers, period=4) if is_second else (None,) * layers
        return config.standard_spec(
            eps=config.number("layer_norm_eps", 1e-5),
            ropes=tuple(None if is_second and window is None else rope for window in windows),
            windows=windows,
            tied=config.boolean("tie_word_embeddings", True),
            norm="layer",
            norm_bias=False,
            qk_norm=not is_second and config.boolean("use_qk_norm", False),
            logit_scale=config.number("logit_scale", 0.0625),
        )
