"""The tensors of a safetensors checkpoint in the form that binding needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from octavo.backends.stored_rows import StoredRows
from octavo.loader import Checkpoint, check_tensors
from octavo.quant.integers import IntegerModule
from octavo.quant.plain import tensor_rows
from octavo.quant.registry import UNNAMED
from octavo.quant.stacked import find_stacked, unused_in_stacks
from octavo.quant.weight_format import WeightFormat


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
