"""One layer of a decoder: attention and an MLP, and how norms and additions join them.

A block takes what is still to be added to the residual stream, and the stream; so the norm that
comes next adds and normalises in one step.
"""

from __future__ import annotations

from octavo.layers.attention import SelfAttention
from octavo.layers.mlp import MLP, GatedMLP
from octavo.layers.module import Batch, Module, Value
from octavo.layers.moe import SparseMLP
from octavo.layers.norm import LayerNorm, RMSNorm

Norm = RMSNorm | LayerNorm


class Block(Module):
    """What a decoder repeats."""

    def __call__(self, x: Value, residual: Value | None, batch: Batch) -> tuple[Value, Value]:
        """Two addends: what this block gives, and the residual stream so far."""
        raise NotImplementedError


class SequentialBlock(Block):
    """Attention, then an MLP, each behind a norm."""

    def __init__(
        self, attn_norm: Norm, attn: SelfAttention, mlp_norm: Norm, mlp: MLP | GatedMLP | SparseMLP
    ) -> None:
        self.attn_norm, self.attn = attn_norm, attn
        self.mlp_norm, self.mlp = mlp_norm, mlp

    def __call__(self, x: Value, residual: Value | None, batch: Batch) -> tuple[Value, Value]:
        x, residual = self.attn_norm.add(x, residual)
        x, residual = self.mlp_norm.add(self.attn(x, batch), residual)
        return self.mlp(x), residual


class ParallelBlock(Block):
    """Attention and an MLP side by side, behind a norm each or one for both."""

    def __init__(
        self, attn_norm: Norm, attn: SelfAttention, mlp_norm: Norm | None, mlp: MLP | GatedMLP
    ) -> None:
        self.attn_norm, self.attn = attn_norm, attn
        self.mlp_norm, self.mlp = mlp_norm, mlp

    def __call__(self, x: Value, residual: Value | None, batch: Batch) -> tuple[Value, Value]:
        x, residual = self.attn_norm.add(x, residual)
        mlp_input = x if self.mlp_norm is None else self.mlp_norm(residual)
        return self.attn(x, batch) + self.mlp(mlp_input), residual


class SandwichBlock(Block):
    """Attention, then an MLP, each between two norms."""

    def __init__(
        self,
        attn_norm: Norm,
        attn: SelfAttention,
        attn_out_norm: Norm,
        mlp_norm: Norm,
        mlp: GatedMLP,
        mlp_out_norm: Norm,
    ) -> None:
        self.attn_norm, self.attn, self.attn_out_norm = attn_norm, attn, attn_out_norm
        self.mlp_norm, self.mlp, self.mlp_out_norm = mlp_norm, mlp, mlp_out_norm

    def __call__(self, x: Value, residual: Value | None, batch: Batch) -> tuple[Value, Value]:
        x, residual = self.attn_norm.add(x, residual)
        x, residual = self.mlp_norm.add(self.attn_out_norm(self.attn(x, batch)), residual)
        return self.mlp_out_norm(self.mlp(x)), residual
