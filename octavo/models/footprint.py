"""Weighs an opened model: its tensors by storage type, and what they come to once they are bound.

Only headers are read. What is held can be weighed as well, to be compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from octavo.backends.base import TensorSize
from octavo.layers import Embedding, PositionEmbedding
from octavo.models.build import find_needs
from octavo.models.load import OpenedModel
from octavo.models.weights import RenamedWeights, Weights
from octavo.observe.memory_bill import Stored, by_type


def stored(opened: OpenedModel) -> tuple[Stored, ...]:
    """The checkpoint's tensors."""
    infos = opened.checkpoint.tensors.values()
    return by_type([(info.type.name, info.num_bytes) for info in infos])


def tensor_sizes(opened: OpenedModel) -> Iterator[TensorSize]:
    """What the layers will hold."""
    weights: Weights = opened.weights
    if opened.model.renames:
        weights = RenamedWeights(weights, opened.model.renames)
    for need in find_needs(opened.model, weights.shapes()):
        shape = need.declared.shape
        is_embedding = isinstance(need.module, Embedding | PositionEmbedding)
        if len(shape) < 2 or not (need.matrix or is_embedding):
            yield TensorSize("F32", 1, math.prod(shape), False, False)
            continue
        for source, piece in zip(need.sources, need.shapes(), strict=True):
            names = need.names(source)
            rows, inputs = piece[-2:] if not source.transposed else piece[:-3:-1]
            rows *= math.prod(piece[:-2])
            for name in names:
                stored = None if source.transposed else weights.stored(name)
                type_ = "F32" if stored is None else stored.type
                yield TensorSize(type_, rows, inputs, True, is_embedding)
