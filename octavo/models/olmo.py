"""OLMo 2 and 3: norms only after attention and MLP, and over all queries and all keys at once."""

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
from octavo.models.config_reader import FULL, SLIDING, Config


class OlmoBlock(Block):
    """Attention and a gated MLP that read the residual stream itself; their outputs are normed."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        self.attn = standard_attention(spec, layer)
        self.attn_out_norm = standard_norm(spec)
        self.mlp = standard_mlp(spec, layer)
        self.mlp_out_norm = standard_norm(spec)

    def __call__(self, x: Value, residual: Value | None, batch: Batch) -> tuple[Value, Value]:
        stream = x if residual is None else residual + x
        stream = stream + self.attn_out_norm(self.attn(stream, batch))
        return self.mlp_out_norm(self.mlp(stream)), stream


class Olmo(CausalLM):
    """A decoder of blocks that normalise their outputs."""

    def block(self, layer: int) -> Block:
        return OlmoBlock(self.spec, layer)

    def weights(self) -> Mapping[str, WeightSource]:
        return {
            **standard_weights(self.spec),
            "blocks.*.attn_out_norm": "model.layers.*.post_attention_layernorm",
            "blocks.*.mlp_out_norm": "model.layers.*.post_feedforward_layernorm",
        }

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """Read the spec; OLMo 3 scales the rotation only in layers without a window."""
        layers, dim = config.layers(), config.head_dim()
        if config.architecture("Olmo2ForCausalLM") == "Olmo3ForCausalLM":
            windows = config.windows(layers, period=4)
            far = config.rope(dim, theta=500_000.0, kind=FULL)
            near = config.rope(dim, theta=500_000.0, kind=SLIDING)
        else:
            windows, far = (None,) * layers, config.rope(dim)
            near = far
        return config.standard_spec(
            eps=config.number("rms_norm_eps", 1e-5),
            ropes=tuple(far if window is None else near for window in windows),
            windows=windows,
            qk_norm=True,
            qk_norm_whole=True,
        )
