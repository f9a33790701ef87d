"""Experts that are stored as one stack: tensors whose first axis is that of the experts.

A layer's experts are stacks `…experts.gate_up_proj` and `…experts.down_proj`, which are no modules
and so have no `weight`. Tools call the parts of such a matrix X in several ways:

- FP8: `X` and `X_scale_inv`; ModelOpt: `X` and `X_weight_scale`, with `X_weight_scale_2`;
- compressed-tensors: `X.weight_packed` and `X.weight_scale`, or `X_packed` and `X_scale`;
- torchao: `…experts._gate_up_proj_qdata` and `…experts._gate_up_proj_scale`.

One expert's share of each part is a tensor at a place of its own in the file. So an expert is a
checkpoint of a single module, whose weight any format reads as it reads other matrices.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from octavo.backends.stored_rows import StoredRows
from octavo.loader import Checkpoint
from octavo.loader.errors import UnsupportedFormatError
from octavo.loader.metadata import Metadata
from octavo.quant.weight_format import Shape, StoredMatrix, WeightFormat

_NAME = re.compile(r"(.*\.experts\.)(_?)(gate_up_proj|gate_proj|up_proj|down_proj)([._].+)?")
_LEAST_AXES = 3  # of the codes: experts, outputs, inputs
# Scales of activations, which keep their own types here.
_UNUSED = re.compile(r"[._](input_scale|input_global_scale|activation_scale)")


class Stack(Struct, frozen=True):
    """The tensors of a stack, by their names in a module that has the weight of one expert."""

    checkpoint: Checkpoint
    name: str
    parts: Mapping[str, str]  # the name in a module → the name in the file
    num_experts: int

    def expert(self, index: int) -> Checkpoint:
        """Return the checkpoint of one expert's module."""
        tensors = {}
        for name, stored in self.parts.items():
            info = self.checkpoint.info(stored)
            size = info.num_bytes // self.num_experts
            tensors[name] = replace(
                info, shape=info.shape[1:], offset=info.offset + index * size, num_bytes=size
            )
        described = self.checkpoint.metadata.get(self.name)
        metadata = {f"{self.name}.weight": described} if isinstance(described, str) else {}
        path = self.checkpoint.path
        return Checkpoint(path, tensors, Metadata.of_strings(path, metadata))


class StackedMatrix(Struct, frozen=True):
    """The matrices of all experts, which a format reads one after the other."""

    stack: Stack
    format: WeightFormat
    first: StoredMatrix

    @property
    def name(self) -> str:
        return self.stack.name

    @property
    def tensors(self) -> tuple[str, ...]:
        return tuple(self.stack.parts[name] for name in self.first.tensors)

    @property
    def shape(self) -> Shape:
        return self.stack.num_experts, *self.first.shape

    @property
    def type(self) -> str:
        return self.first.type

    def stored_shapes(self, shape: Shape) -> Mapping[str, Shape]:
        sizes = self.first.stored_shapes(shape[1:])
        # A part that is missing has the name that a module's would have.
        parts = self.stack.parts
        return {parts.get(name, name): (shape[0], *size) for name, size in sizes.items()}

    def rows(self) -> StoredRows:
        made, experts = self.first.rows(), self.stack.num_experts
        first = made.array
        data = np.empty((experts, *first.shape), np.uint8)
        for index, place in enumerate(data):
            rows = self._rows_of(index) if index else made
            if rows.columns is not None:
                raise UnsupportedFormatError(
                    "is in act-order, which is not supported in one tensor for all experts",
                    path=self.stack.checkpoint.path,
                    tensor=self.name,
                    advice="use a model with a tensor for each expert, or without act-order",
                )
            place[:] = rows.array if index else first
        return StoredRows(made.layout, made.inputs, data.reshape(-1, data.shape[-1]))

    def _rows_of(self, index: int) -> StoredRows:
        (matrix,) = _found(self.format, self.stack, index)
        return matrix.rows()


def find_stacked(format_: WeightFormat, checkpoint: Checkpoint) -> Iterator[StackedMatrix]:
    """Find the stacks whose parts have this format's names and types."""
    for stack in _stacks(checkpoint):
        for first in _found(format_, stack, 0):
            yield StackedMatrix(stack, format_, first)


def unused_in_stacks(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield the tensors of stacks that only a computation in other types of activations needs."""
    for name in checkpoint.tensors:
        match = _NAME.fullmatch(name)
        if match and match[4] and _UNUSED.fullmatch(match[4]):
            yield name


def _found(format_: WeightFormat, stack: Stack, index: int) -> list[StoredMatrix]:
    """Return the matrix of an expert's module, if the format knows it."""
    found = format_.find(stack.expert(index))
    return [matrix for matrix in found if matrix.name == f"{stack.name}.weight"]


def _stacks(checkpoint: Checkpoint) -> Iterator[Stack]:
    parts: dict[str, dict[str, str]] = {}
    for stored in checkpoint.tensors:
        match = _NAME.fullmatch(stored)
        if match is not None:
            experts, is_hidden, matrix, part = match.groups("")
            name = experts + matrix
            parts.setdefault(name, {})[_name_in_module(name, bool(is_hidden), part)] = stored
    for name, stored_parts in parts.items():
        shapes = [checkpoint.info(stored).shape for stored in stored_parts.values()]
        num_experts = next((shape[0] for shape in shapes if len(shape) >= _LEAST_AXES), 0)
        if num_experts and len(stored_parts) > 1:
            whole = {
                part: stored
                for (part, stored), shape in zip(stored_parts.items(), shapes, strict=True)
                if shape[:1] == (num_experts,)
            }
            yield Stack(checkpoint, name, whole, num_experts)


def _name_in_module(name: str, is_hidden: bool, part: str) -> str:
    """Return the name that a part of a stack would have in a module with one expert's weight."""
    if is_hidden:
        return f"{name}._weight{part}"
    ending = part.removeprefix(".weight").removeprefix("_weight")
    return f"{name}{ending}" if ending.startswith(".") else f"{name}.weight{ending}"
