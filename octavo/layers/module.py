"""The base of every layer, and what a backend must be able to do with values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

# A backend's value: a torch tensor, or a symbol of the program being recorded. Layers add and
# scale values with + and *, and give everything else to `ops`.
Value = Any


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a projection that are one thing: the queries, say."""

    name: str
    rows: int
    unit: int = 1  # rows that stay together when the projection is split: a head's
    replicable: bool = False  # fewer units than ranks: several ranks hold the same one (KV heads)


@dataclass(frozen=True, slots=True)
class TensorDeclaration:
    """One tensor that a layer wants from the checkpoint."""

    shape: tuple[int, ...]
    optional: bool = False  # a checkpoint without it is whole all the same
    split: Part | None = None  # its rows are shared out over ranks (a Linear says so itself)


class Batch(Protocol):
    """What a forward pass is told of its tokens, as backend values; the backend makes it."""

    @property
    def token_ids(self) -> Value:
        """The token at each row."""

    @property
    def positions(self) -> Value:
        """Its place in its sequence."""

    @property
    def logits_rows(self) -> Value:
        """The rows whose logits are wanted."""

    @property
    def hidden_rows(self) -> Value:
        """The rows whose last hidden state is wanted."""


class Ops(Protocol):
    """Every operation a model may use. `backends/torch/ops.py` says what each one means."""

    def embed(self, token_ids: Value, table: Value) -> Value: ...
    def select_rows(self, x: Value, rows: Value) -> Value: ...
    def linear(self, x: Value, weight: Value, bias: Value | None) -> Value: ...
    def split(self, x: Value, sizes: tuple[int, ...]) -> tuple[Value, ...]: ...
    def rms_norm(self, x: Value, weight: Value, eps: float, offset: float) -> Value: ...
    def layer_norm(self, x: Value, weight: Value, bias: Value | None, eps: float) -> Value: ...
    def head_norm(self, x: Value, norm: Module, heads: int) -> Value: ...
    def rope(self, x: Value, positions: Value, rope: Any, head_dim: int) -> Value: ...
    def attention(self, q: Value, k: Value, v: Value, layer: Any, batch: Any) -> Value: ...
    def activation(self, x: Value, name: str) -> Value: ...
    def gated_activation(self, gate_up: Value, name: str) -> Value: ...
    def soft_cap(self, x: Value, cap: float) -> Value: ...
    def route(self, scores: Value, routing: Any, bias: Value | None) -> tuple[Value, Value]: ...
    def experts(self, x: Value, weights: Value, chosen: Value, layer: Any) -> Value: ...
    def sigmoid(self, x: Value) -> Value: ...


class Module:
    """A layer: other layers as attributes (or in lists), and tensors it declares.

    After binding, each declared tensor `name` is an attribute `name` holding the backend's
    value, or None where an optional one is absent.
    """

    ops: Ops

    def tensors(self) -> dict[str, TensorDeclaration]:
        """The tensors of this layer itself, not of the layers inside it."""
        return {}

    def walk(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This layer and all layers inside it, each with its dotted name."""
        yield prefix, self
        for name, value in vars(self).items():
            inner = f"{prefix}.{name}" if prefix else name
            if isinstance(value, Module):
                yield from value.walk(inner)
            elif isinstance(value, list):
                for index, item in enumerate(value):
                    if isinstance(item, Module):
                        yield from item.walk(f"{inner}.{index}")
