"""Encoders: every token attends to all others of its text, and no token follows."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.layers.attention import MutualAttention, QKVLinear, RelativeBias, SelfAttention
from octavo.layers.block import Norm
from octavo.layers.embedding import Embedding, PositionEmbedding, TypeEmbedding
from octavo.layers.linear import Linear
from octavo.layers.mlp import MLP, GatedMLP
from octavo.layers.model import Model
from octavo.layers.module import Batch, Module, Value
from octavo.layers.norm import LayerNorm
from octavo.layers.spec import ModelSpec


def mutual_attention(spec: ModelSpec, layer: int) -> SelfAttention:
    """Declare one layer's attention over all tokens of a text."""
    heads, dim = spec.heads, spec.head_dim
    return SelfAttention(
        QKVLinear(spec.hidden, heads, spec.kv_heads, dim, bias=spec.qkv_bias),
        MutualAttention(
            heads,
            spec.kv_heads,
            dim,
            scale=spec.attention_scale,
            rope=spec.ropes[layer],
            window=spec.windows[layer],
            distances=RelativeBias(spec.buckets, heads) if spec.buckets else None,
        ),
        Linear(heads * dim, spec.hidden, bias=spec.out_bias, shard="in"),
    )


def encoder_mlp(spec: ModelSpec) -> MLP | GatedMLP:
    """Declare a layer's MLP, gated or plain."""
    kind = GatedMLP if spec.gated else MLP
    return kind(spec.hidden, spec.ffn, spec.activation, bias=spec.mlp_bias)


class EncoderBlock(Module):
    """Attention and an MLP, each added to its input; the sums are normalised, as in BERT."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        self.attn = mutual_attention(spec, layer)
        self.attn_norm: Norm = LayerNorm(spec.hidden, spec.eps, bias=spec.norm_bias)
        self.mlp = encoder_mlp(spec)
        self.mlp_norm: Norm = LayerNorm(spec.hidden, spec.eps, bias=spec.norm_bias)

    def __call__(self, x: Value, batch: Batch) -> Value:
        x = self.attn_norm(x + self.attn(x, batch))
        return self.mlp_norm(x + self.mlp(x))


class Encoder(Model):
    """An encoder: embeddings of tokens, positions and types, normalised, and blocks behind them."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.embed = Embedding(spec.vocabulary, spec.hidden)
        if spec.ropes[0] is None:
            self.position = PositionEmbedding(spec.max_len, spec.hidden)
        if spec.types:
            self.type = TypeEmbedding(spec.types, spec.hidden)
        self.embed_norm = LayerNorm(spec.hidden, spec.eps, bias=spec.norm_bias)
        self.blocks: Sequence[Module] = [self.block(layer) for layer in range(spec.layers)]

    def block(self, layer: int) -> Module:
        """Declare one of the blocks, which takes hidden states and the batch."""
        return EncoderBlock(self.spec, layer)

    def enter(self, batch: Batch) -> Value:
        """Compute the input of the first block."""
        x = self.embed(batch.token_ids)
        if self.spec.types:
            x = x + self.type(batch.types)
        if self.spec.ropes[0] is None:
            x = x + self.position(batch.positions)
        return self.embed_norm(x)

    def hidden(self, batch: Batch) -> Value:
        x = self.enter(batch)
        for block in self.blocks:
            x = block(x, batch)  # type: ignore[operator]
        return x
