"""Mixture of experts: a router picks a few gated MLPs for each token."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from octavo.layers.linear import GateUpLinear, Linear, MatrixStack
from octavo.layers.mlp import GatedMLP
from octavo.layers.module import Module, TensorDeclaration, Value


class Routing(Struct, frozen=True):
    """The rule by which scores become the weights of the chosen experts."""

    top_k: int
    # "softmax": over all experts, before the best are chosen; "chosen": over the chosen ones only;
    # "sigmoid": of each score separately
    scores: Literal["softmax", "chosen", "sigmoid"] = "softmax"
    normalise: bool = False  # scale the chosen weights to a sum of one
    scale: float = 1.0
    # Experts are chosen among those of the best `top_groups` of so many equal groups. A group is as
    # good as its `group_best` best experts together.
    groups: int = 1
    top_groups: int = 1
    group_best: int = 1


class DownLinear(Linear):
    """The projection out of the inner width of an expert."""


class ExpertMatrices(MatrixStack):
    """The weights [expert, out, in] of all experts, and biases if the family has them."""

    gate_up_weight: Value
    gate_up_bias: Value  # only if has_bias
    down_weight: Value
    down_bias: Value

    def __init__(
        self, experts: int, hidden: int, ffn: int, activation: str, bias: bool = False
    ) -> None:
        self.num_experts = experts
        self.hidden = hidden
        self.ffn = ffn
        self.activation = activation
        self.has_bias = bias

    def tensors(self) -> dict[str, TensorDeclaration]:
        experts, hidden, ffn = self.num_experts, self.hidden, self.ffn
        declared = {
            "gate_up_weight": TensorDeclaration((experts, 2 * ffn, hidden)),
            "down_weight": TensorDeclaration((experts, hidden, ffn)),
        }
        if self.has_bias:
            declared["gate_up_bias"] = TensorDeclaration((experts, 2 * ffn))
            declared["down_bias"] = TensorDeclaration((experts, hidden))
        return declared

    def matrix(self, tensor: str) -> Linear:
        if tensor.startswith("gate_up"):
            return GateUpLinear(self.hidden, self.ffn)
        return DownLinear(self.ffn, self.hidden, shard="in")


class SparseMLP(Module):
    """A router, its experts, and an optional expert that every token passes."""

    correction: Value  # only if has_correction

    def __init__(
        self,
        hidden: int,
        ffn: int,
        experts: int,
        routing: Routing,
        activation: str,
        *,
        router_bias: bool = False,
        expert_bias: bool = False,
        shared_ffn: int = 0,
        shared_gate: bool = False,  # a sigmoid of its own weights the shared expert
        correction: bool = False,  # a learned number is added to each score for the choice alone
    ) -> None:
        self.routing = routing
        self.num_experts = experts
        self.has_correction = correction
        self.router = Linear(hidden, experts, bias=router_bias)
        self.experts = ExpertMatrices(experts, hidden, ffn, activation, expert_bias)
        self.shared = GatedMLP(hidden, shared_ffn, activation) if shared_ffn else None
        self.shared_gate = Linear(hidden, 1) if shared_gate else None

    def tensors(self) -> dict[str, TensorDeclaration]:
        if not self.has_correction:
            return {}
        return {"correction": TensorDeclaration((self.num_experts,))}

    def __call__(self, x: Value) -> Value:
        correction = self.correction if self.has_correction else None
        weights, chosen = self.ops.route(self.router(x), self.routing, correction)
        y = self.ops.experts(x, weights, chosen, self.experts)
        if self.shared is not None:
            shared = self.shared(x)
            if self.shared_gate is not None:
                shared = shared * self.ops.sigmoid(self.shared_gate(x))
            y = y + shared
        return y
