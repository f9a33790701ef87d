"""One layer of a decoder: attention and an MLP, and the norms and additions that join them.

A block receives and returns the residual stream as two addends, so that the next norm can add
and normalise in one step.
"""

from __future__ import annotations

from octavo.layers.attention import SelfAttention
from octavo.layers.convolution import GatedConvolution
from octavo.layers.latent import LatentSelfAttention
from octavo.layers.mlp import MLP, GatedMLP
from octavo.layers.module import Batch, Module, Value
from octavo.layers.moe import SparseMLP
from octavo.layers.norm import LayerNorm, RMSNorm

Norm = RMSNorm | LayerNorm
AnyMLP = MLP | GatedMLP | SparseMLP


class Block(Module):
    """One of the layers that a decoder stacks."""

    def __call__(self, x: Value, residual: Value | None, batch: Batch) -> tuple[Value, Value]:
        """Return two addends: this block's last output, and the residual stream before it."""
        raise NotImplementedError


class SequentialBlock(Block):
    """Attention, then an MLP, each preceded by a norm; both outputs may be scaled."""

    def __init__(
        self,
        attn_norm: Norm,
        attn: SelfAttention | LatentSelfAttention | GatedConvolution,
        mlp_norm: Norm,
        mlp: AnyMLP,
        scale: float = 1.0,
    ) -> None:
        self.attn_norm, self.attn = attn_norm, attn
        self.mlp_norm, self.mlp = mlp_norm, mlp
        self.scale = scale

    def __call__(self, x: Value, residual: Value | None, batch: Batch) -> tuple[Value, Value]:
        x, residual = self.attn_norm.add(x, residual)
        x, residual = self.mlp_norm.add(self._scaled(self.attn(x, batch)), residual)
        return self._scaled(self.mlp(x)), residual

    def _scaled(self, x: Value) -> Value:
        return x if self.scale == 1.0 else x * self.scale


class ParallelBlock(Block):
    """Attention and an MLP in parallel, with a norm before each or one before both."""

    def __init__(
        self, attn_norm: Norm, attn: SelfAttention, mlp_norm: Norm | None, mlp: AnyMLP
    ) -> None:
        self.attn_norm, self.attn = attn_norm, attn
        self.mlp_norm, self.mlp = mlp_norm, mlp

    def __call__(self, x: Value, residual: Value | None, batch: Batch) -> tuple[Value, Value]:
        x, residual = self.attn_norm.add(x, residual)
        mlp_input = x if self.mlp_norm is None else self.mlp_norm(residual)
        return self.attn(x, batch) + self.mlp(mlp_input), residual


class SandwichBlock(Block):
    """Attention, then an MLP, with norms before and after each."""

    def __init__(
        self,
        attn_norm: Norm,
        attn: SelfAttention,
        attn_out_norm: Norm,
        mlp_norm: Norm,
        mlp: AnyMLP,
        mlp_out_norm: Norm,
    ) -> None:
        self.attn_norm, self.attn, self.attn_out_norm = attn_norm, attn, attn_out_norm
        self.mlp_norm, self.mlp, self.mlp_out_norm = mlp_norm, mlp, mlp_out_norm

    def __call__(self, x: Value, residual: Value | None, batch: Batch) -> tuple[Value, Value]:
        x, residual = self.attn_norm.add(x, residual)
        x, residual = self.mlp_norm.add(self.attn_out_norm(self.attn(x, batch)), residual)
        return self.mlp_out_norm(self.mlp(x)), residual
