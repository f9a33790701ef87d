"""Latent attention: one short row is kept for each position, from which all heads read.

A head's key is a product of its own matrix with the row's latent, beside a rotated part that all
heads share; its value is another product with the latent. Neither is computed: the matrix of the
keys is applied to the queries, and that of the values to the sum of latents. So attention is over
one KV head, whose values are a part of its keys.
"""

from __future__ import annotations

from octavo.layers.attention import Attention
from octavo.layers.kv_spec import KVSpec
from octavo.layers.linear import Linear, MatrixStack
from octavo.layers.module import Batch, Module, Part, TensorDeclaration, Value
from octavo.layers.norm import RMSNorm
from octavo.layers.rope import Rope
from octavo.layers.spec import ModelSpec

_EPS = 1e-6  # of the norms of latents, whatever the model's other norms have


class HeadLinear(MatrixStack):
    """A projection of each head by a matrix of its own; its first `passed` numbers stay."""

    weight: Value

    def __init__(self, heads: int, inputs: int, outputs: int, passed: int = 0) -> None:
        self.heads = heads
        self.inputs = inputs
        self.outputs = outputs
        self.passed = passed

    def tensors(self) -> dict[str, TensorDeclaration]:
        shape = (self.heads, self.outputs, self.inputs)
        return {"weight": TensorDeclaration(shape, split=Part("heads", self.heads))}

    def matrix(self, tensor: str) -> Linear:
        return Linear(self.inputs, self.outputs)

    def __call__(self, x: Value) -> Value:
        return self.ops.head_linear(x, self.weight, self.passed)


class LowRankLinear(Module):
    """A projection to a short row, a norm of it, and a projection from there."""

    def __init__(self, shorten: Linear, norm: RMSNorm, widen: Linear) -> None:
        self.shorten, self.norm, self.widen = shorten, norm, widen

    def __call__(self, x: Value) -> Value:
        return self.widen(self.norm(self.shorten(x)))


class LatentAttention(Attention):
    """Attention over the latents of earlier tokens, and the rotated parts of their keys."""

    def __init__(self, heads: int, latent: int, turning: int, *, scale: float, rope: Rope) -> None:
        super().__init__(heads, 1, turning + latent, scale=scale, rope=rope)
        self.latent = latent

    @property
    def kv_spec(self) -> KVSpec:
        return KVSpec("latent", 1, self.head_dim, latent=self.latent)

    def over(self, q: Value, turning: Value, latent: Value, batch: Batch) -> Value:
        """Attend with queries of each head, the row's own keys being `turning` and `latent`."""
        assert self.rope is not None
        q = self.ops.rope(q, batch.positions, self.rope, self.head_dim)
        turned = self.ops.rope(turning, batch.positions, self.rope, self.head_dim - self.latent)
        return self.ops.attention(q, turned, latent, self, batch)


class LatentSelfAttention(Module):
    """The projections to queries and to the latent row, attention, and the projection back.

    A head's queries begin with the part that rotates.
    """

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        sizes, rope = spec.latent, spec.ropes[layer]
        assert sizes is not None
        assert rope is not None
        heads, bias = spec.heads, spec.qkv_bias
        width = sizes.turning + sizes.still
        self.q = _queries(spec, heads, width)
        self.kv = Linear(spec.hidden, sizes.latent + sizes.turning, bias=bias)
        self.kv_norm = RMSNorm(sizes.latent, _EPS)
        self.keys = HeadLinear(heads, sizes.still, sizes.latent, passed=sizes.turning)
        self.attend = LatentAttention(
            heads, sizes.latent, sizes.turning, scale=spec.attention_scale, rope=rope
        )
        self.values = HeadLinear(heads, sizes.latent, sizes.value)
        self.out = Linear(heads * sizes.value, spec.hidden, bias=spec.out_bias, shard="in")

    def __call__(self, x: Value, batch: Batch) -> Value:
        attend = self.attend
        sizes = (attend.latent, attend.head_dim - attend.latent)
        # In this order, threads wait for each other as seldom as possible.
        q = self.q(x)
        latent, turning = self.ops.split(self.kv(x), sizes)
        normed = self.kv_norm(latent)
        seen = attend.over(self.keys(q), turning, normed, batch)
        return self.out(self.values(seen))


def _queries(spec: ModelSpec, heads: int, width: int) -> Linear | LowRankLinear:
    """Declare the projection to queries, through a short row if the spec has one."""
    assert spec.latent is not None
    rank, parts = spec.latent.queries, (Part("q", heads * width, unit=width),)
    if not rank:
        return Linear(spec.hidden, parts, shard="out")
    shorten = Linear(spec.hidden, rank, bias=spec.qkv_bias)
    return LowRankLinear(shorten, RMSNorm(rank, _EPS), Linear(rank, parts, shard="out"))
