"""The memory of an opened model: its stored tensors by type, and the tensors of its layers.

Only headers are read, and the orders of inputs of stacks in act-order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby

from octavo.backends.base import FLOAT_TYPES, TensorSize
from octavo.layers import (
    Embedding,
    ExpertMatrices,
    HeadRows,
    Linear,
    MatrixStack,
    PositionEmbedding,
    QKVLinear,
    TypeEmbedding,
)
from octavo.models.load import OpenedModel
from octavo.models.needs import Need, Source, find_needs
from octavo.models.weights import Weights, named_as_declared
from octavo.observe.stored_bytes import StoredBytes, by_type


def stored(opened: OpenedModel) -> tuple[StoredBytes, ...]:
    """Return the sizes of the checkpoint's tensors by type."""
    tensors = opened.checkpoint.tensors
    types = opened.weights.stored_types()
    return by_type([(types[name], info.num_bytes) for name, info in tensors.items()])


def most_stored_type(opened: OpenedModel) -> str:
    """Return the type of most bytes of the checkpoint, or of its largest tensor if all are made."""
    if not opened.checkpoint.tensors:
        shapes = opened.weights.shapes()
        return opened.weights.row_type(max(shapes, key=lambda name: math.prod(shapes[name])))
    return max(stored(opened), key=lambda each: each.num_bytes).type


def num_parameters(opened: OpenedModel) -> int:
    """Return how many values the model's tensors have, whatever type they are stored in."""
    return sum(math.prod(shape) for shape in opened.weights.shapes().values())


def tensor_sizes(opened: OpenedModel) -> Iterator[TensorSize]:
    """Yield the sizes of the tensors that the layers will hold."""
    for _, size, count in _sizes(opened):
        yield from [size] * count


def expert_sizes(opened: OpenedModel) -> Iterator[tuple[TensorSize, int]]:
    """Yield the sizes of the matrices of one expert of each layer, and how many experts it has."""
    for need, size, count in _sizes(opened):
        if isinstance(need.module, ExpertMatrices) and size.is_matrix:
            yield size, count


def _sizes(opened: OpenedModel) -> Iterator[tuple[Need, TensorSize, int]]:
    """Yield the sizes of tensors, or of their matrices, with how many there are of each."""
    weights = named_as_declared(opened.weights, opened.model)
    for need in find_needs(opened.model, weights.shapes()):
        shape = need.declared.shape
        is_embedding = isinstance(need.module, Embedding | PositionEmbedding | TypeEmbedding)
        is_qkv = isinstance(need.module, QKVLinear)
        if not need.is_matrix:
            yield need, TensorSize("F32", 1, math.prod(shape), False, False), 1
            continue
        count = shape[0] if isinstance(need.module, MatrixStack) else 1
        parts = [_part(need, index, weights, count) for index in range(len(need.sources))]
        ordered = {
            part[0]
            for part, source in zip(parts, need.sources, strict=True)
            if not isinstance(need.module, Linear) and _is_in_act_order(need, source, weights)
        }
        for (type_, inputs), run in groupby(parts, lambda part: part[:2]):
            num_rows = sum(rows for _, _, rows in run)
            size = TensorSize(type_, num_rows, inputs, True, is_embedding, is_qkv, type_ in ordered)
            yield need, size, count


def _is_in_act_order(need: Need, source: Source, weights: Weights) -> bool:
    if source.transposed:
        return False  # the rows are computed
    return any(weights.is_in_act_order(name) for name in need.names(source))


def _part(need: Need, index: int, weights: Weights, count: int) -> tuple[str, int, int]:
    """Return the type of one source's rows, their inputs, and how many each matrix has."""
    source, shape = need.sources[index], list(need.shapes())[index]
    if isinstance(source, HeadRows):
        _, rows, inputs = need.declared.shape
        type_ = weights.row_type(source.name)
        is_kept = not source.transposed or type_ in FLOAT_TYPES
        return type_ if is_kept else "F32", inputs, rows
    rows, inputs = shape[:-3:-1] if source.transposed else shape[-2:]
    names = need.names(source)
    type_ = "F32" if source.transposed else weights.row_type(names[0])
    return type_, inputs, rows * math.prod(shape[:-2]) * len(names) // count
