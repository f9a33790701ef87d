"""Weights that no file has: of a model's shapes, with numbers that are drawn.

A step over them takes as long as over the model's own, so that a machine can be measured without
them. What they say means nothing.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.lib.stride_tricks import as_strided

from octavo.backends.stored_rows import Bytes, Floats, StoredRows
from octavo.layers import Model
from octavo.loader.tensor_type import BF16, F16, F32, TensorType
from octavo.models.needs import Need, find_needs
from octavo.quant.plain import layout_of

_TYPES = {"float32": F32, "float16": F16, "bfloat16": BF16}
# Each row of a matrix begins so many numbers behind the one before: rows share most of their
# numbers, so that they take hardly any memory and time, and no two are equal.
_STEP = 32


class MadeWeights:
    """The weights that a declared model needs, in a type of floats."""

    def __init__(self, model: Model, dtype: str) -> None:
        self._type = _TYPES.get(dtype, BF16)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._needs: dict[str, Need] = {}
        for need in find_needs(model, ()):
            for source, shape in zip(need.sources, need.shapes(), strict=True):
                for name in need.names(source):
                    self._shapes[name], self._needs[name] = shape, need

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def rows(self, name: str) -> StoredRows:
        shape = self._shapes[name]
        if len(shape) < 2:
            # Factors of norms are ones, and what is added is nothing.
            fill = np.ones if self._needs[name].tensor == "weight" else np.zeros
            return StoredRows.of(fill((1, *(shape or (1,))), np.float32))
        return _drawn(name, math.prod(shape[:-1]), shape[-1], self._type)

    def row_type(self, name: str) -> str:
        return self._type.name if len(self._shapes[name]) > 1 else F32.name

    def is_in_act_order(self, name: str) -> bool:
        return False

    def stored_types(self) -> Mapping[str, str]:
        return {name: self.row_type(name) for name in self._shapes}

    def check(self, expected: Mapping[str, tuple[int, ...]], extra: Iterable[str]) -> None:
        """Refuse nothing: names and shapes are the model's own."""


def _drawn(name: str, rows: int, inputs: int, type_: TensorType) -> StoredRows:
    """Return rows of numbers around zero, by which an output is as large as an input."""
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    bound = math.sqrt(3 / inputs)
    numbers = generator.random(inputs + _STEP * (rows - 1), np.float32) * (2 * bound) - bound
    stored = _as_stored(numbers, type_)
    size = type_.block_bytes
    views = as_strided(stored, (rows, inputs * size), (_STEP * size, 1), writeable=False)
    return StoredRows(layout_of(type_), inputs, views)


def _as_stored(numbers: Floats, type_: TensorType) -> Bytes:
    if type_ is F32:
        return numbers.view(np.uint8)
    if type_ is F16:
        return numbers.astype(np.float16).view(np.uint8)
    return (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
