"""Weights and a backend that only exist to be recorded: shapes without values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo.backends.stored_rows import StoredRows
from octavo.layers import GateUpLinear, Module


@dataclass(frozen=True)
class FakeMatrix:
    """A matrix of one part in one format."""

    outputs: int
    inputs: int
    gated: bool = False
    kind: str = "floats"
    formats: str = "F32"

    @property
    def num_bytes(self) -> int:
        return 4 * self.outputs * self.inputs

    def by_kind(self) -> list[FakeMatrix]:
        """Return the matrix as its only part, for the native engine's passes."""
        return [self]


@dataclass(frozen=True)
class FakeExperts:
    """A matrix for each expert."""

    matrices: list[FakeMatrix]
    are_whole: bool = False

    @property
    def inputs(self) -> int:
        return self.matrices[0].inputs

    @property
    def kind(self) -> str:
        return self.matrices[0].kind


class FakeBackend:
    """The part of a backend that binding a model needs."""

    def parameter(self, array: Any) -> object:
        return object()

    def matrix(self, parts: Sequence[StoredRows], module: Module) -> FakeMatrix:
        rows = sum(map(len, parts))
        return FakeMatrix(rows, parts[0].inputs, isinstance(module, GateUpLinear))

    def experts(self, matrices: Sequence[Sequence[StoredRows]], module: Module) -> FakeExperts:
        return FakeExperts([self.matrix(parts, module) for parts in matrices])
