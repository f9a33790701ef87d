"""The interface that recording and the passes need of a backend's weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct

# Floats in the backend's own form: a norm's weights, a bias. The program does not look inside.
Vector = Any


class Matrix(Protocol):
    """A weight [outputs, inputs] in a backend's own form."""

    @property
    def outputs(self) -> int: ...
    @property
    def inputs(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...

    @property
    def gated(self) -> bool:
        """True if the rows are gates and ups, so that one product can end with their gating."""

    @property
    def kind(self) -> str:
        """The form of input rows that a product with this matrix reads."""

    @property
    def formats(self) -> str:
        """The names of the stored formats, for listings that people read."""


class Experts(Protocol):
    """One matrix for each expert, all of one format."""

    @property
    def matrices(self) -> Sequence[Matrix]: ...
    @property
    def inputs(self) -> int: ...
    @property
    def kind(self) -> str: ...


class Adapters(Struct, frozen=True, eq=False):
    """The place in every adapter of what it may add to one product or lookup, part by part.

    Rows have adapters of their own while a step runs. An adapter makes a few low numbers of a row,
    and addends of them for the outputs of some parts.
    """

    path: str  # of the projection among the model's layers
    number: int  # of the product in an adapter
    inputs: int
    parts: tuple[int, ...]  # outputs of each
    width: int  # the most low numbers of a row
    is_lookup: bool = False  # of the embedding, which has as many inputs as there are tokens
    has_wholes: bool = False  # adapters may have a matrix of their own in place of this one
