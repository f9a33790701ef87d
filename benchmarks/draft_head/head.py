"""A drafter of the EAGLE-3 kind in torch, with the steps of a chain unrolled for training.

Rows are those of published code: row i has the hidden states of position i and token i + 1, and
proposes token i + 2. In a chain that begins there, its next row has the output of this one in place
of hidden states. All rows of a text begin a chain of their own at once, each with the text's own
tokens: a row of a later step reads the first rows up to its beginning, and its own chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

EPS = 1e-5


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a drafter, which those of its model give."""

    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    num_layers_read: int
    vocabulary: int  # of the drafter
    rope_theta: float


class Norm(nn.Module):
    """A root mean square norm, computed in float32."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * self.weight


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Attention(nn.Module):
    """The projections of the attention."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, both = sizes.head_dim, 2 * sizes.hidden
        self.q_proj = _linear(both, sizes.heads * width)
        self.k_proj = _linear(both, sizes.kv_heads * width)
        self.v_proj = _linear(both, sizes.kv_heads * width)
        self.o_proj = _linear(sizes.heads * width, sizes.hidden)


class Mlp(nn.Module):
    """The gated part behind the attention."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate_proj = _linear(sizes.hidden, sizes.ffn)
        self.up_proj = _linear(sizes.hidden, sizes.ffn)
        self.down_proj = _linear(sizes.ffn, sizes.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """The only layer; its parts have the names that files of this kind have."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.input_layernorm = Norm(sizes.hidden)
        self.hidden_norm = Norm(sizes.hidden)
        self.self_attn = Attention(sizes)
        self.post_attention_layernorm = Norm(sizes.hidden)
        self.mlp = Mlp(sizes)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of several texts, one behind the other, from which chains begin.

    Of the `counts` rows of a text, those from `first` on are trained; the others are only read.
    """

    counts: Sequence[int]
    first: Sequence[int]

    def trained(self) -> Tensor:
        """Return the places of the rows that are trained."""
        parts, start = [], 0
        for count, first in zip(self.counts, self.first, strict=True):
            parts.append(torch.arange(start + first, start + count))
            start += count
        return torch.cat(parts)


class Head(nn.Module):
    """The drafter: what it reads and computes, and the head over its own vocabulary."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.fc = _linear(sizes.num_layers_read * sizes.hidden, sizes.hidden)
        self.midlayer = Layer(sizes)
        self.norm = Norm(sizes.hidden)
        self.lm_head = _linear(sizes.hidden, sizes.vocabulary)
        half = sizes.head_dim // 2
        self._frequencies = sizes.rope_theta ** (-torch.arange(half) / half)

    def chains(self, read: Tensor, embedded: Sequence[Tensor], rows: Rows) -> list[Tensor]:
        """Return for each step the scores of the trained rows.

        `embedded` has for each step the embedding of each row's token: in the first step of all
        rows, in later ones of the trained rows.
        """
        feature = self.fc(read)
        places = torch.cat([torch.arange(count) for count in rows.counts])
        trained = rows.trained()
        known: list[tuple[Tensor, Tensor]] = []
        scores = []
        for step, tokens in enumerate(embedded):
            chosen = None if step else trained
            feature = self._rows(feature, tokens, places + step, known, rows, chosen)
            places = places if step else places[trained]
            scores.append(self.lm_head(self.norm(feature)))
        return scores

    def _rows(
        self,
        feature: Tensor,
        embedded: Tensor,
        positions: Tensor,
        known: list[tuple[Tensor, Tensor]],
        rows: Rows,
        chosen: Tensor | None,
    ) -> Tensor:
        """Return the outputs of the chosen rows, and add the keys and values of all to `known`."""
        layer, sizes = self.midlayer, self.sizes
        normed = layer.hidden_norm(feature)
        both = torch.cat((layer.input_layernorm(embedded), normed), -1)
        attend = layer.self_attn
        k = self._rotated(attend.k_proj(both), positions)
        v = attend.v_proj(both).unflatten(-1, (sizes.kv_heads, -1))
        known.append((k.to(v.dtype), v))
        if chosen is not None:
            normed, both, positions = normed[chosen], both[chosen], positions[chosen]
        q = self._rotated(attend.q_proj(both), positions)
        x = normed + attend.o_proj(_attention(q, known, rows))
        return x + layer.mlp(layer.post_attention_layernorm(x))

    def _rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        x = x.view(len(x), -1, self.sizes.head_dim).float()
        angles = positions[:, None, None] * self._frequencies
        cos, sin = angles.cos(), angles.sin()
        first, second = x.chunk(2, -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def _attention(q: Tensor, known: Sequence[tuple[Tensor, Tensor]], rows: Rows) -> Tensor:
    """Return what trained rows read: their texts' first rows up to their own, and their chains."""
    (first_k, first_v), *chain = known
    q = (q * q.shape[-1] ** -0.5).to(first_k.dtype).unflatten(1, (first_k.shape[1], -1))
    in_chain = [torch.einsum("nghd,ngd->ghn", q, k)[..., None].float() for k, _ in chain]
    outputs, start, begun = [], 0, 0
    for count, first in zip(rows.counts, rows.first, strict=True):
        all_rows, own = slice(start, start + count), slice(begun, begun + count - first)
        is_later = torch.arange(count) > torch.arange(first, count)[:, None]
        scores = torch.einsum("nghd,mgd->ghnm", q[own], first_k[all_rows]).float()
        scores = scores.masked_fill(is_later, float("-inf"))
        parts = [scores, *[each[:, :, own] for each in in_chain]]
        shares = torch.cat(parts, -1).softmax(-1).to(q.dtype)
        seen = torch.einsum("ghnm,mgd->nghd", shares[..., :count], first_v[all_rows])
        for at, (_, v) in enumerate(chain, count):
            seen = seen + torch.einsum("ghn,ngd->nghd", shares[..., at], v[own])
        outputs.append(seen.flatten(1))
        start, begun = all_rows.stop, own.stop
    return torch.cat(outputs)
