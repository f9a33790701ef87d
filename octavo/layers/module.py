"""The base of every layer, and the operations that a backend must provide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, Protocol

from msgspec import Struct

# A weight in a backend's own form, or a symbol of the program being recorded. Layers use + and *
# on values, and call `ops` for everything else.
Value = Any

# What completes a layer's result when several ranks share the model: the sum of all ranks' results,
# or their columns side by side.
Collective = Literal["sum", "gather"]


class Part(Struct, frozen=True):
    """Rows of a projection that belong together, for example the queries."""

    name: str
    rows: int
    unit: int = 1  # rows that stay together when the projection is split: those of a head
    replicable: bool = False  # with fewer units than ranks, ranks hold copies (KV heads)


class TensorDeclaration(Struct, frozen=True):
    """One tensor that a layer needs from the checkpoint."""

    shape: tuple[int, ...]
    optional: bool = False  # a checkpoint may lack it
    split: Part | None = None  # what is split over ranks (a Linear has `shard` instead)
    axis: int = 0  # along which it is split


class Batch(Protocol):
    """The inputs of a forward pass as the backend's values."""

    @property
    def token_ids(self) -> Value:
        """The token of each row."""

    @property
    def positions(self) -> Value:
        """The position of each row in its sequence."""

    @property
    def types(self) -> Value:
        """The type of each row: which text of a pair it belongs to."""

    @property
    def logits_rows(self) -> Value:
        """The rows whose logits are wanted."""

    @property
    def hidden_rows(self) -> Value:
        """The rows whose last hidden state is wanted."""


class Ops(Protocol):
    """Every operation that models may use; the recorder in octavo/program implements them all."""

    def embed(self, token_ids: Value, table: Value) -> Value: ...
    def select_rows(self, x: Value, rows: Value) -> Value: ...
    def linear(self, x: Value, weight: Value, bias: Value | None) -> Value: ...
    def head_linear(self, x: Value, weight: Value, passed: int) -> Value: ...
    def split(self, x: Value, sizes: tuple[int, ...]) -> tuple[Value, ...]: ...
    def rms_norm(self, x: Value, weight: Value, eps: float, offset: float) -> Value: ...
    def layer_norm(self, x: Value, weight: Value, bias: Value | None, eps: float) -> Value: ...
    def head_norm(self, x: Value, norm: Module, heads: int) -> Value: ...
    def rope(self, x: Value, positions: Value, rope: Any, head_dim: int) -> Value: ...
    def attention(self, q: Value, k: Value, v: Value, layer: Any, batch: Any) -> Value: ...
    def convolve(self, x: Value, layer: Any, batch: Any) -> Value: ...
    def activation(self, x: Value, name: str) -> Value: ...
    def gated_activation(self, gate_up: Value, name: str) -> Value: ...
    def soft_cap(self, x: Value, cap: float) -> Value: ...
    def route(self, scores: Value, routing: Any, bias: Value | None) -> tuple[Value, Value]: ...
    def experts(self, x: Value, weights: Value, chosen: Value, layer: Any) -> Value: ...
    def sigmoid(self, x: Value) -> Value: ...
    def keep(self, x: Value, layer: Any) -> None: ...
    def keep_kv(self, k: Value, v: Value, layer: Any) -> None: ...
    def recall(self, layer: Any) -> Value: ...
    def given(self, width: int) -> Value: ...
    def spread(self, x: Value, columns: Any, width: int) -> Value: ...


class Module:
    """A layer: other layers as attributes (or in lists), and the tensors that it declares.

    After binding, each declared tensor is an attribute of the same name that holds the backend's
    value, or None if it is optional and absent. On one of several ranks, the sizes of a bound layer
    are those of the rank's share, and `collective` is what completes its result.
    """

    ops: Ops
    collective: Collective | None = None

    def tensors(self) -> dict[str, TensorDeclaration]:
        """Declare the tensors of this layer itself, without the layers inside it."""
        return {}

    def walk(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yield this layer and all layers inside it, each with its dotted name."""
        yield prefix, self
        for name, value in vars(self).items():
            inner = f"{prefix}.{name}" if prefix else name
            if isinstance(value, Module):
                yield from value.walk(inner)
            elif isinstance(value, list):
                for index, item in enumerate(value):
                    if isinstance(item, Module):
                        yield from item.walk(f"{inner}.{index}")
