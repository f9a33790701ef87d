"""Matrix products: a weight, an optional bias, and the parts that its rows consist of."""

from __future__ import annotations

from typing import Any, Literal

from octavo.layers.module import Module, Part, TensorDeclaration, Value


class Linear(Module):
    """A projection y = x Wᵀ + b, split over ranks by its outputs, by its inputs, or not at all."""

    weight: Value
    bias: Value | None
    # The inputs, of all ranks', that the matrix reads; None: the layer's own input (see bind).
    columns: Any = None

    def __init__(
        self,
        inputs: int,
        outputs: int | tuple[Part, ...],
        *,
        bias: bool = False,
        shard: Literal["out", "in"] | None = None,
    ) -> None:
        self.inputs = inputs
        self.parts = outputs if isinstance(outputs, tuple) else (Part("all", outputs),)
        self.outputs = sum(part.rows for part in self.parts)
        self.shard = shard
        self.has_bias = bias

    def tensors(self) -> dict[str, TensorDeclaration]:
        declared = {"weight": TensorDeclaration((self.outputs, self.inputs))}
        if self.has_bias:
            declared["bias"] = TensorDeclaration((self.outputs,))
        return declared

    def __call__(self, x: Value) -> Value:
        return self.ops.linear(x, self.weight, self.bias if self.has_bias else None)


class MatrixStack(Module):
    """A tensor of several matrices [count, out, in] that are used apart."""

    def matrix(self, tensor: str) -> Linear:
        """Return the projection that each matrix of a tensor is, as ranks split it."""
        raise NotImplementedError


class GateUpLinear(Linear):
    """The two projections of a gated MLP, as one matrix: gate above up."""

    def __init__(self, hidden: int, ffn: int, *, bias: bool = False) -> None:
        super().__init__(hidden, (Part("gate", ffn), Part("up", ffn)), bias=bias, shard="out")
