"""A checkpoint's tensors in the form that binding needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from octavo.backends.stored_rows import StoredRows
from octavo.layers import Model
from octavo.loader import Checkpoint, check_tensors
from octavo.quant.integers import IntegerModule
from octavo.quant.plain import tensor_rows
from octavo.quant.registry import UNNAMED
from octavo.quant.stacked import find_stacked, unused_in_stacks
from octavo.quant.weight_format import WeightFormat


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


class CheckpointWeights:
    """A safetensors checkpoint: matrices of its formats, and other tensors as they are."""

    def __init__(self, checkpoint: Checkpoint, formats: Sequence[WeightFormat] = UNNAMED) -> None:
        self._checkpoint = checkpoint
        self._formats = formats
        self._matrices = {
            matrix.name: matrix
            for format_ in formats
            for find in (format_.find, partial(find_stacked, format_))
            for matrix in find(checkpoint)
        }
        self._owners = {
            tensor: matrix for matrix in self._matrices.values() for tensor in matrix.tensors
        }
        self._shapes = {
            name: info.shape
            for name, info in checkpoint.tensors.items()
            if name not in self._owners
        }
        self._shapes |= {name: matrix.shape for name, matrix in self._matrices.items()}

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def rows(self, name: str) -> StoredRows:
        if name in self._matrices:
            return self._matrices[name].rows()
        return tensor_rows(self._checkpoint, name)

    def row_type(self, name: str) -> str:
        if name in self._matrices:
            return self._matrices[name].type
        return self._checkpoint.info(name).type.name

    def is_in_act_order(self, name: str) -> bool:
        matrix = self._matrices.get(name)
        return isinstance(matrix, IntegerModule) and matrix.is_in_act_order

    def stored_types(self) -> Mapping[str, str]:
        types = {name: info.type.name for name, info in self._checkpoint.tensors.items()}
        return types | {name: matrix.type for name, matrix in self._owners.items()}

    def check(self, expected: Mapping[str, tuple[int, ...]], extra: Iterable[str]) -> None:
        stored: dict[str, tuple[int, ...]] = {}
        for name, shape in expected.items():
            matrix = self._matrices.get(name)
            # A matrix of another number of dimensions is reported by its name.
            if matrix is None or len(matrix.shape) not in (0, len(shape)):
                stored[name] = shape
            else:
                stored |= matrix.stored_shapes(shape)
        unused = [
            name for format_ in self._formats for name in format_.unused(self._checkpoint, expected)
        ]
        unused += unused_in_stacks(self._checkpoint)
        for name in extra:
            unused += self._matrices[name].tensors if name in self._matrices else (name,)
        check_tensors(self._checkpoint, stored, may_be_extra=unused)


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
