"""Normalisations, alone or after a residual addition."""

from __future__ import annotations

from octavo.layers.module import Module, Part, TensorDeclaration, Value


class _Norm(Module):
    def __call__(self, x: Value) -> Value:
        raise NotImplementedError

    def add(self, x: Value, residual: Value | None) -> tuple[Value, Value]:
        """Add x to the residual stream; return the normalised sum and the sum."""
        total = x if residual is None else residual + x
        return self(total), total


class RMSNorm(_Norm):
    """A normalisation by the root mean square: x / rms(x) · (offset + w)."""

    weight: Value

    def __init__(self, size: int, eps: float, offset: float = 0.0) -> None:
        self.size = size
        self.eps = eps
        self.offset = offset  # 1 for Gemma, whose checkpoints contain w - 1

    def tensors(self) -> dict[str, TensorDeclaration]:
        return {"weight": TensorDeclaration((self.size,))}

    def __call__(self, x: Value) -> Value:
        return self.ops.rms_norm(x, self.weight, self.eps, self.offset)


class LayerNorm(_Norm):
    """A normalisation (x - mean) / std · w + b; a size (heads, dimensions) means w per head."""

    weight: Value
    bias: Value | None

    def __init__(self, size: int | tuple[int, int], eps: float, bias: bool = True) -> None:
        self.shape = (size,) if isinstance(size, int) else size
        self.eps = eps
        self.has_bias = bias

    def tensors(self) -> dict[str, TensorDeclaration]:
        heads = self.shape[0] if len(self.shape) == 2 else 0
        split = Part("heads", heads, replicable=True) if heads else None
        names = ("weight", "bias") if self.has_bias else ("weight",)
        return {name: TensorDeclaration(self.shape, split=split) for name in names}

    def __call__(self, x: Value) -> Value:
        return self.ops.layer_norm(x, self.weight, self.bias if self.has_bias else None, self.eps)
