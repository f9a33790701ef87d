"""The interface of a model's stored tensors, and their names as the model's family has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from octavo.backends.stored_rows import StoredRows
from octavo.layers import Model


class Weights(Protocol):
    """Tensors by their Hugging Face names, independent of the file format."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every tensor."""

    def rows(self, name: str) -> StoredRows:
        """Return the rows of a tensor as stored; of a stack, matrix after matrix.

        A vector is one row. Rows that the file has in another form, for example columns, are
        computed and have the type F32.
        """

    def row_type(self, name: str) -> str:
        """Return the type of the rows without reading them."""

    def is_in_act_order(self, name: str) -> bool:
        """Return whether the inputs of the rows are in an order of their own, which is read."""

    def stored_types(self) -> Mapping[str, str]:
        """Return the type of each of the file's own tensors, by the names of the file."""

    def check(self, expected: Mapping[str, tuple[int, ...]], extra: Iterable[str]) -> None:
        """Refuse missing tensors, wrong shapes, and tensors neither expected nor in `extra`."""


def named_as_declared(weights: Weights, model: Model) -> Weights:
    """Return weights under the names of the model's family."""
    return RenamedWeights(weights, model.renames) if model.renames else weights


class RenamedWeights:
    """Weights whose names have other prefixes than those of the family."""

    def __init__(self, weights: Weights, renames: Sequence[tuple[str, str]]) -> None:
        self._weights = weights
        # The family's name → the checkpoint's. If two checkpoint names map to one tensor, one of
        # them is not expected and therefore refused.
        self._stored = {renamed(stored, renames): stored for stored in weights.shapes()}

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        shapes = self._weights.shapes()
        return {name: shapes[stored] for name, stored in self._stored.items()}

    def rows(self, name: str) -> StoredRows:
        return self._weights.rows(self._stored[name])

    def row_type(self, name: str) -> str:
        return self._weights.row_type(self._stored[name])

    def is_in_act_order(self, name: str) -> bool:
        return self._weights.is_in_act_order(self._stored[name])

    def stored_types(self) -> Mapping[str, str]:
        return self._weights.stored_types()

    def check(self, expected: Mapping[str, tuple[int, ...]], extra: Iterable[str]) -> None:
        stored = {self._stored.get(name, name): shape for name, shape in expected.items()}
        self._weights.check(stored, [self._stored.get(name, name) for name in extra])


def renamed(name: str, renames: Sequence[tuple[str, str]]) -> str:
    """Return the name that a family has for a tensor of the checkpoint."""
    for prefix, ours in renames:
        if name.startswith(prefix):
            return ours + name.removeprefix(prefix)
    return name
