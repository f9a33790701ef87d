"""Dense feed-forward layers."""

from __future__ import annotations

from octavo.layers.linear import GateUpLinear, Linear
from octavo.layers.module import Module, Value


class GatedMLP(Module):
    """A gated feed-forward layer: down(act(gate(x)) · up(x))."""

    def __init__(self, hidden: int, ffn: int, activation: str, *, bias: bool = False) -> None:
        self.activation = activation
        self.gate_up = GateUpLinear(hidden, ffn, bias=bias)
        self.down = Linear(ffn, hidden, bias=bias, shard="in")

    def __call__(self, x: Value) -> Value:
        return self.down(self.ops.gated_activation(self.gate_up(x), self.activation))


class MLP(Module):
    """A plain feed-forward layer: down(act(up(x)))."""

    def __init__(self, hidden: int, ffn: int, activation: str, *, bias: bool = True) -> None:
        self.activation = activation
        self.up = Linear(hidden, ffn, bias=bias, shard="out")
        self.down = Linear(ffn, hidden, bias=bias, shard="in")

    def __call__(self, x: Value) -> Value:
        return self.down(self.ops.activation(self.up(x), self.activation))
