"""Cohere 1 and 2 (Command R): attention and MLP side by side behind one norm without bias."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.layers import (
    Batch,
    Block,
    CausalLM,
    Embedding,
    GatedMLP,
    LayerNorm,
    Linear,
    PagedAttention,
    QKVLinear,
    SelfAttention,
    Value,
)
from octavo.layers.weight_names import WeightSource
from octavo.models.config_reader import Config
from octavo.models.spec import ModelSpec


class Attention(SelfAttention):
    """Self-attention; each head may have norms of its own for queries and keys."""

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
            q_norm=LayerNorm((heads, dim), spec.eps, bias=False) if spec.qk_norm else None,
            k_norm=LayerNorm((kv_heads, dim), spec.eps, bias=False) if spec.qk_norm else None,
        )
        self.out = Linear(heads * dim, spec.hidden, bias=spec.out_bias, shard="in")


class DecoderBlock(Block):
    """Attention and a gated MLP read the same normalised input; both are added."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        self.norm = LayerNorm(spec.hidden, spec.eps, bias=False)
        self.attn = Attention(spec, layer)
        self.mlp = GatedMLP(spec.hidden, spec.ffn, spec.activation)

    def __call__(self, x: Value, residual: Value | None, batch: Batch) -> tuple[Value, Value]:
        x, residual = self.norm.add(x, residual)
        return self.mlp(x), residual + self.attn(x, batch)


class Cohere(CausalLM):
    """The whole decoder."""

    architectures = ("CohereForCausalLM", "Cohere2ForCausalLM")

    def __init__(self, spec: ModelSpec) -> None:
        self.embed = Embedding(spec.vocabulary, spec.hidden)
        self.blocks = [DecoderBlock(spec, layer) for layer in range(spec.layers)]
        self.norm = LayerNorm(spec.hidden, spec.eps, bias=False)
        self.head = Linear(spec.hidden, spec.vocabulary, shard="out")
        self.tied, self.logit_scale = spec.tied, spec.logit_scale

    def weights(self) -> Mapping[str, WeightSource]:
        attention, mlp = "model.layers.*.self_attn.", "model.layers.*.mlp."
        return {
            "embed": "model.embed_tokens",
            "blocks.*.norm": "model.layers.*.input_layernorm",
            "blocks.*.attn.qkv": tuple(attention + name for name in ("q_proj", "k_proj", "v_proj")),
            "blocks.*.attn.attend.q_norm": attention + "q_norm",
            "blocks.*.attn.attend.k_norm": attention + "k_norm",
            "blocks.*.attn.out": attention + "o_proj",
            "blocks.*.mlp.gate_up": (mlp + "gate_proj", mlp + "up_proj"),
            "blocks.*.mlp.down": mlp + "down_proj",
            "norm": "model.norm",
            "head": "lm_head",
        }

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """In the second, layers that see everything know no positions."""
        kind = (config.strings("architectures") or ("CohereForCausalLM",))[0]
        is_second = kind == "Cohere2ForCausalLM"
        layers, dim = config.layers(), config.head_dim()
        rope = config.rope(dim, theta=10_000.0 if is_second else 500_000.0, interleaved=True)
        windows: tuple[int | None, ...] = (None,) * layers
        if is_second:
            windows = config.windows(layers, period=4)
        bias = config.boolean("attention_bias", False)
        return ModelSpec(
            vocabulary=config.positive("vocab_size"),
            hidden=config.positive("hidden_size"),
            layers=layers,
            heads=config.positive("num_attention_heads"),
            kv_heads=config.kv_heads(),
            head_dim=dim,
            ffn=config.positive("intermediate_size"),
            eps=config.number("layer_norm_eps", 1e-5),
            activation=config.activation("hidden_act", "silu"),
            max_len=config.max_len(),
            attention_scale=dim**-0.5,
            ropes=tuple(None if is_second and window is None else rope for window in windows),
            windows=windows,
            tied=config.boolean("tie_word_embeddings", True),
            qkv_bias=bias,
            out_bias=bias,
            qk_norm=not is_second and config.boolean("use_qk_norm", False),
            logit_scale=config.number("logit_scale", 0.0625),
        )
