"""Attention, causal over paged KV or both ways within a step, and the projections around it."""

from __future__ import annotations

import math

from octavo.layers.kv_spec import KVLayer, KVSpec
from octavo.layers.linear import Linear
from octavo.layers.module import Batch, Module, Part, TensorDeclaration, Value
from octavo.layers.norm import LayerNorm, RMSNorm
from octavo.layers.rope import Rope


class QKVLinear(Linear):
    """The projection to queries, keys and values as one matrix, in this order."""

    def __init__(
        self, hidden: int, heads: int, kv_heads: int, head_dim: int, *, bias: bool = False
    ) -> None:
        parts = (
            Part("q", heads * head_dim, unit=head_dim),
            Part("k", kv_heads * head_dim, unit=head_dim, replicable=True),
            Part("v", kv_heads * head_dim, unit=head_dim, replicable=True),
        )
        super().__init__(hidden, parts, bias=bias, shard="out")


class SelfAttention(Module):
    """A projection to queries, keys and values, attention, and the projection back."""

    def __init__(self, qkv: QKVLinear, attend: Attention, out: Linear) -> None:
        self.qkv, self.attend, self.out = qkv, attend, out

    def __call__(self, x: Value, batch: Batch) -> Value:
        return self.out(self.attend(self.qkv(x), batch))


class RelativeBias(Module):
    """A learned number for each head and bucket of distances, which attention adds to scores.

    Distances up to half of a direction's buckets have one each. Those up to `farthest` share the
    others in logarithmic steps, and farther ones have the last.
    """

    weight: Value

    def __init__(self, buckets: int, heads: int, farthest: int = 128) -> None:
        self.buckets = buckets
        self.heads = heads
        self.farthest = farthest

    def tensors(self) -> dict[str, TensorDeclaration]:
        split = Part("heads", self.heads)
        return {"weight": TensorDeclaration((self.buckets, self.heads), split=split, axis=1)}

    def bucket(self, distance: int) -> int:
        """Return the bucket of a distance from the query to a position, before it if negative."""
        one_way = self.buckets // 2
        exact, steps = one_way // 2, abs(distance)
        first = one_way if distance > 0 else 0
        if steps < exact:
            return first + steps
        share = math.log(steps / exact) / math.log(self.farthest / exact)
        return first + min(exact + int(share * (one_way - exact)), one_way - 1)


class Attention(KVLayer):
    """Softmax attention of each token over its own sequence."""

    sinks: Value | None
    both_ways: bool = False  # later tokens of the step are read as well
    latent: int = 0  # the last numbers of a key that are its value; 0: values are kept apart
    skipped: int = 0  # leading positions that no later one reads

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        scale: float,
        rope: Rope | None = None,
        # How many recent positions are read, the token's own included; both ways, as many later.
        window: int | None = None,
        softcap: float | None = None,
        q_norm: RMSNorm | LayerNorm | None = None,
        k_norm: RMSNorm | LayerNorm | None = None,
        norm_whole: bool = False,  # the norms are over all heads together, not head by head
        has_sinks: bool = False,  # each head can attend to a learned sink that has no value
        distances: RelativeBias | None = None,  # what is added to a score for a distance
    ) -> None:
        self.heads = heads
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.scale = scale
        self.rope = rope
        self.window = window
        self.softcap = softcap
        self.q_norm = q_norm
        self.k_norm = k_norm
        self.norm_whole = norm_whole
        self.has_sinks = has_sinks
        self.distances = distances

    def tensors(self) -> dict[str, TensorDeclaration]:
        if not self.has_sinks:
            return {}
        return {"sinks": TensorDeclaration((self.heads,), split=Part("sinks", self.heads))}

    def __call__(self, qkv: Value, batch: Batch) -> Value:
        dim = self.head_dim
        sizes = (self.heads * dim, self.kv_heads * dim, self.kv_heads * dim)
        q, k, v = self.ops.split(qkv, sizes)
        q = self._prepare(q, self.q_norm, self.heads, batch)
        k = self._prepare(k, self.k_norm, self.kv_heads, batch)
        return self.ops.attention(q, k, v, self, batch)

    def _prepare(
        self, x: Value, norm: RMSNorm | LayerNorm | None, heads: int, batch: Batch
    ) -> Value:
        if norm is not None:
            x = norm(x) if self.norm_whole else self.ops.head_norm(x, norm, heads)
        if self.rope is not None:
            x = self.ops.rope(x, batch.positions, self.rope, self.head_dim)
        return x


class PagedAttention(Attention):
    """Attention over earlier tokens, whose KV is kept in blocks."""

    @property
    def kv_spec(self) -> KVSpec:
        return KVSpec("full", self.kv_heads, self.head_dim, self.window)


class ContextAttention(PagedAttention):
    """Attention over positions whose keys and values come from elsewhere, and the step's own rows.

    `keep` keeps those of positions that do not attend; rows that do add theirs.
    """

    def attend(self, q: Value, kv: Value, batch: Batch) -> Value:
        """Attend from rows whose queries, and keys and values, are given apart."""
        q = self._prepare(q, self.q_norm, self.heads, batch)
        return self.ops.attention(q, *self._keys_and_values(kv, batch), self, batch)

    def keep(self, kv: Value, batch: Batch) -> None:
        """Keep the keys and values of rows, each in the place of its position."""
        self.ops.keep_kv(*self._keys_and_values(kv, batch), self)

    def _keys_and_values(self, kv: Value, batch: Batch) -> tuple[Value, Value]:
        size = self.kv_heads * self.head_dim
        k, v = self.ops.split(kv, (size, size))
        return self._prepare(k, self.k_norm, self.kv_heads, batch), v


class MutualAttention(Attention):
    """Attention over earlier and later tokens alike, all of them in one step; nothing is kept."""

    both_ways = True
    place = (0, 0)

    @property
    def kv_spec(self) -> KVSpec:
        return KVSpec("none", self.kv_heads, self.head_dim)
