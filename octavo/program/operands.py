"""The interface that recording and fusion need of a backend's packed weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

# Floats in the backend's own form: a norm's weights, a bias. The program does not look inside.
Vector = Any


class Matrix(Protocol):
    """A packed weight [outputs, inputs]; a backend may keep it in several parts."""

    @property
    def outputs(self) -> int: ...
    @property
    def inputs(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...

    @property
    def gated(self) -> bool:
        """True if gate and up rows are interleaved, so that one product yields both."""

    @property
    def kind(self) -> str:
        """The form of input rows that a product with this matrix reads."""

    @property
    def formats(self) -> str:
        """The names of the stored formats, for listings that people read."""

    def by_kind(self) -> Sequence[Matrix]:
        """Split the matrix into one matrix for each run of parts of the same kind."""


class Experts(Protocol):
    """One matrix for each expert, all of one format."""

    @property
    def matrices(self) -> Sequence[Matrix]: ...
    @property
    def inputs(self) -> int: ...
    @property
    def kind(self) -> str: ...
