"""Recording of a model's forward pass: each operation on symbols becomes an instruction."""

from __future__ import annotations

from typing import cast

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from octavo.layers import (
    Attention,
    Context,
    FeatureRows,
    LayerNorm,
    Model,
    Module,
    Ops,
    RMSNorm,
    Rope,
    Routing,
    ShortConvolution,
)
from octavo.layers.moe import ExpertMatrices
from octavo.program.listing import (
    Attend,
    Buffer,
    Convolve,
    Distances,
    IdsOf,
    Instruction,
    Listing,
    Mixture,
    Norm,
    RecordingError,
    Space,
    Value,
)
from octavo.program.operands import Experts, Matrix, Vector

ACTIVATIONS = {
    "silu": "Silu",
    "swish": "Silu",
    "gelu": "GeluErf",
    "gelu_pytorch_tanh": "GeluTanh",
    "gelu_new": "GeluTanh",
    "gelu_fast": "GeluTanh",
    "relu": "Relu",
    "relu2": "Relu2",
}
GATES = {**ACTIVATIONS, "clamped_swiglu": "ClampedSwiglu"}


class Ids(Struct, frozen=True):
    """A symbol for the token ids of a step, the tokens' positions, or the types of their texts."""

    of: IdsOf


class WantedRows(Struct, frozen=True):
    """A symbol for the rows whose logits or hidden states are wanted."""

    space: Space


class RecordedBatch(Struct, frozen=True):
    """The symbols of a batch of any size."""

    token_ids: Ids = Ids("Tokens")
    positions: Ids = Ids("Positions")
    types: Ids = Ids("Types")
    logits_rows: WantedRows = WantedRows("Logits")
    hidden_rows: WantedRows = WantedRows("Hidden")


def record(model: Model) -> Listing:
    """Record the forward pass of a bound model, from token ids to logits and hidden states."""
    recorder = Recorder()
    for _, module in model.walk():
        module.ops = cast(Ops, recorder)
    logits, hidden = model(RecordedBatch())
    for value, place in ((logits, "LogitsOut"), (hidden, "HiddenOut")):
        if value is None:
            continue
        if not value.is_whole:
            raise RecordingError("logits or hidden states that are a part of another value")
        value.buffer.place = place
    return Listing(recorder.instructions)


def record_context(context: Context, total: Value) -> list[Instruction]:
    """Record what keeps a drafter's keys and values, from the sum of its projections."""
    recorder = Recorder()
    modules = [context.norm, *[module for pair in context.readers for module in pair]]
    for module in modules:
        for _, each in module.walk():
            each.ops = cast(Ops, recorder)
    context.keep(total, RecordedBatch())
    return recorder.instructions


class Recorder:
    """An implementation of `octavo.layers.Ops` that records every operation."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []

    # values

    def _new(self, space: Space, width: int) -> Value:
        return Value(Buffer(space, width), 0, width, self)

    def new_like(self, x: Value) -> Value:
        """Return a new buffer with as many rows and columns."""
        return self._new(x.buffer.space, x.width)

    def _append(self, instruction: Instruction) -> Value:
        self.instructions.append(instruction)
        assert instruction.out is not None
        return instruction.out

    def add(self, x: Value, y: Value) -> Value:
        if x.width != y.width:
            raise RecordingError(f"a sum of {x.width} and {y.width} columns")
        return self._append(Instruction("Add", x, y, self.new_like(x)))

    def multiply(self, x: Value, y: Value | float) -> Value:
        if not isinstance(y, Value):
            return self._append(Instruction("Scale", x, out=self.new_like(x), factor=float(y)))
        if y.width not in (1, x.width):
            raise RecordingError(f"a product of {x.width} and {y.width} columns")
        return self._append(Instruction("Multiply", x, y, self.new_like(x)))

    # octavo.layers.Ops

    def embed(self, token_ids: Ids, table: Matrix) -> Value:
        out = self._new("Tokens", table.inputs)
        return self._append(Instruction("Embed", out=out, matrix=table, ids=token_ids.of))

    def select_rows(self, x: Value, rows: WantedRows) -> Value:
        return self._append(Instruction("Select", x, out=self._new(rows.space, x.width)))

    def linear(self, x: Value, weight: Matrix, bias: Vector | None) -> Value:
        if x.width != weight.inputs:
            raise RecordingError(f"{x.width} columns for a matrix of {weight.inputs} inputs")
        out = self._new(x.buffer.space, weight.outputs)
        return self._append(Instruction("Gemm", x, out=out, matrix=weight, bias=bias))

    def head_linear(self, x: Value, weight: Experts, passed: int) -> Value:
        heads, matrix = len(weight.matrices), weight.matrices[0]
        if x.width != heads * (passed + matrix.inputs):
            raise RecordingError(f"{x.width} columns for {heads} heads of {matrix.inputs} inputs")
        out = self._new(x.buffer.space, heads * (passed + matrix.outputs))
        return self._append(Instruction("HeadGemm", x, out=out, experts=weight, passed=passed))

    def split(self, x: Value, sizes: tuple[int, ...]) -> tuple[Value, ...]:
        parts, first = [], x.first
        for size in sizes:
            parts.append(Value(x.buffer, first, size, self))
            first += size
        return tuple(parts)

    def rms_norm(self, x: Value, weight: Vector, eps: float, offset: float) -> Value:
        norm = Norm(weight, None, eps, offset, is_rms=True)
        return self._append(Instruction("Norm", x, out=self.new_like(x), norm=norm))

    def layer_norm(self, x: Value, weight: Vector, bias: Vector | None, eps: float) -> Value:
        norm = Norm(weight, bias, eps, 0.0, is_rms=False)
        return self._append(Instruction("Norm", x, out=self.new_like(x), norm=norm))

    def head_norm(self, x: Value, norm: Module, heads: int) -> Value:
        if isinstance(norm, RMSNorm):
            made = Norm(norm.weight, None, norm.eps, norm.offset, is_rms=True, heads=heads)
        elif isinstance(norm, LayerNorm):
            bias = norm.bias if norm.has_bias else None
            a_head = len(norm.shape) == 2
            made = Norm(norm.weight, bias, norm.eps, 0.0, False, heads, weight_a_head=a_head)
        else:
            raise RecordingError(f"a norm of the kind {type(norm).__name__}")
        return self._append(Instruction("Norm", x, out=self.new_like(x), norm=made))

    def rope(self, x: Value, positions: Ids, rope: Rope, head_dim: int) -> Value:
        return self._append(
            Instruction("Rope", x, out=self.new_like(x), rope=rope, head_dim=head_dim)
        )

    def attention(
        self, q: Value, k: Value, v: Value, layer: Attention, batch: RecordedBatch
    ) -> Value:
        attend = _attend(layer)
        out = self._new("Tokens", layer.heads * attend.value_dim)
        return self._append(Instruction("Attention", q, k, out, v, attend=attend))

    def convolve(self, x: Value, layer: ShortConvolution, batch: RecordedBatch) -> Value:
        bias = layer.bias if layer.has_bias else None
        return self._append(
            Instruction(
                "Convolve",
                x,
                out=self._new("Tokens", x.width),
                convolve=Convolve(layer.weight, bias, layer.kernel, layer.place),
            )
        )

    def activation(self, x: Value, name: str) -> Value:
        if name not in ACTIVATIONS:
            raise RecordingError(f"the activation {name!r}")
        return self._append(
            Instruction("Activate", x, out=self.new_like(x), activation=ACTIVATIONS[name])
        )

    def sigmoid(self, x: Value) -> Value:
        return self._append(Instruction("Activate", x, out=self.new_like(x), activation="Sigmoid"))

    def gated_activation(self, gate_up: Value, name: str) -> Value:
        half = gate_up.width // 2
        gate, up = self.split(gate_up, (half, half))
        out = self._new(gate_up.buffer.space, half)
        return self._append(Instruction("Gate", gate, up, out, activation=_gate(name)))

    def soft_cap(self, x: Value, cap: float) -> Value:
        return self._append(Instruction("SoftCap", x, out=self.new_like(x), cap=cap))

    def route(self, scores: Value, routing: Routing, bias: Vector | None) -> tuple[Value, Value]:
        weights = self._new(scores.buffer.space, routing.top_k)
        chosen = self._new(scores.buffer.space, routing.top_k)
        self._append(
            Instruction("Route", scores, out=weights, chosen=chosen, routing=routing, bias=bias)
        )
        return weights, chosen

    def keep(self, x: Value, layer: FeatureRows) -> None:
        if x.width != layer.width:
            raise RecordingError(f"rows of {x.width} columns in a place for {layer.width}")
        self.instructions.append(Instruction("Keep", x, place=layer.place))

    def keep_kv(self, k: Value, v: Value, layer: Attention) -> None:
        self.instructions.append(Instruction("KeepKV", y=k, values=v, attend=_attend(layer)))

    def recall(self, layer: FeatureRows) -> Value:
        out = self._new("Tokens", layer.width)
        return self._append(Instruction("Recall", out=out, place=layer.place))

    def given(self, width: int) -> Value:
        return self._append(Instruction("Given", out=self._new("Tokens", width)))

    def spread(self, x: Value, columns: NDArray[np.int64], width: int) -> Value:
        if x.width != len(columns):
            raise RecordingError(f"places for {len(columns)} of {x.width} columns")
        out = self._new(x.buffer.space, width)
        return self._append(Instruction("Spread", x, out=out, columns=columns))

    def experts(self, x: Value, weights: Value, chosen: Value, layer: ExpertMatrices) -> Value:
        mixture = Mixture(
            layer.gate_up_weight,
            layer.down_weight,
            layer.gate_up_bias if layer.has_bias else None,
            layer.down_bias if layer.has_bias else None,
            _gate(layer.activation),
        )
        out = self.new_like(x)
        return self._append(Instruction("Experts", x, weights, out, chosen=chosen, mixture=mixture))


def _attend(layer: Attention) -> Attend:
    """Return the parameters of an attention, without what passes take into it."""
    return Attend(
        layer.heads,
        layer.kv_heads,
        layer.head_dim,
        layer.scale,
        layer.softcap or 0.0,
        layer.window or 0,
        layer.sinks if layer.has_sinks else None,
        layer.place,
        both_ways=layer.both_ways,
        latent=layer.latent,
        distances=_distances(layer),
        skipped=layer.skipped,
    )


def _distances(layer: Attention) -> Distances | None:
    """Return the addends of scores by distance, if the layer has any."""
    bias = layer.distances
    if bias is None:
        return None
    reach = bias.farthest
    buckets = [bias.bucket(distance) for distance in range(-reach, reach + 1)]
    return Distances(bias.weight, tuple(buckets))


def _gate(name: str) -> str:
    if name not in GATES:
        raise RecordingError(f"the gated activation {name!r}")
    return GATES[name]
