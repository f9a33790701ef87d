"""OLMo 2 and 3: norms only behind attention and MLP, and over all queries and all keys at once."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.layers import (
    Batch,
    Block,
    CausalLM,
    Embedding,
    GatedMLP,
    Linear,
    PagedAttention,
    QKVLinear,
    RMSNorm,
    SelfAttention,
    Value,
)
from octavo.layers.weight_names import WeightSource
from octavo.models.config_reader import FULL, SLIDING, Config
from octavo.models.spec import ModelSpec


class Attention(SelfAttention):
    """Self-attention; OLMo 3 looks through a window in most layers."""

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
            q_norm=RMSNorm(heads * dim, spec.eps),
            k_norm=RMSNorm(kv_heads * dim, spec.eps),
            norm_whole=True,
        )
        self.out = Linear(heads * dim, spec.hidden, bias=spec.out_bias, shard="in")


class DecoderBlock(Block):
    """Attention and a gated MLP on the plain residual stream; what they add is normalised."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        self.attn = Attention(spec, layer)
        self.attn_out_norm = RMSNorm(spec.hidden, spec.eps)
        self.mlp = GatedMLP(spec.hidden, spec.ffn, spec.activation)
        self.mlp_out_norm = RMSNorm(spec.hidden, spec.eps)

    def __call__(self, x: Value, residual: Value | None, batch: Batch) -> tuple[Value, Value]:
        stream = x if residual is None else residual + x
        stream = stream + self.attn_out_norm(self.attn(stream, batch))
        return self.mlp_out_norm(self.mlp(stream)), stream


class Olmo(CausalLM):
    """The whole decoder."""

    architectures = ("Olmo2ForCausalLM", "Olmo3ForCausalLM")

    def __init__(self, spec: ModelSpec) -> None:
        self.embed = Embedding(spec.vocabulary, spec.hidden)
        self.blocks = [DecoderBlock(spec, layer) for layer in range(spec.layers)]
        self.norm = RMSNorm(spec.hidden, spec.eps)
        self.head = Linear(spec.hidden, spec.vocabulary, shard="out")
        self.tied = spec.tied

    def weights(self) -> Mapping[str, WeightSource]:
        layer, attention = "model.layers.*.", "model.layers.*.self_attn."
        return {
            "embed": "model.embed_tokens",
            "blocks.*.attn.qkv": tuple(attention + name for name in ("q_proj", "k_proj", "v_proj")),
            "blocks.*.attn.attend.q_norm": attention + "q_norm",
            "blocks.*.attn.attend.k_norm": attention + "k_norm",
            "blocks.*.attn.out": attention + "o_proj",
            "blocks.*.attn_out_norm": layer + "post_attention_layernorm",
            "blocks.*.mlp.gate_up": (layer + "mlp.gate_proj", layer + "mlp.up_proj"),
            "blocks.*.mlp.down": layer + "mlp.down_proj",
            "blocks.*.mlp_out_norm": layer + "post_feedforward_layernorm",
            "norm": "model.norm",
            "head": "lm_head",
        }

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """OLMo 3 scales the rotation only where a layer sees everything."""
        kind = (config.strings("architectures") or ("Olmo2ForCausalLM",))[0]
        layers, dim = config.layers(), config.head_dim()
        if kind == "Olmo3ForCausalLM":
            windows = config.windows(layers, period=4)
            far = config.rope(dim, theta=500_000.0, kind=FULL)
            near = config.rope(dim, theta=500_000.0, kind=SLIDING)
        else:
            windows, far = (None,) * layers, config.rope(dim)
            near = far
        bias = config.boolean("attention_bias", False)
        return ModelSpec(
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
            ropes=tuple(far if window is None else near for window in windows),
            windows=windows,
            tied=config.boolean("tie_word_embeddings", False),
            qkv_bias=bias,
            out_bias=bias,
        )
