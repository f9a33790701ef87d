"""Matrices of torchao's integers of four bits, written and dequantised by their descriptions."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Made = tuple[dict[str, Array], NDArray[np.float32]]
Shape = tuple[int, int]


def tiles(codes: Array) -> Array:
    """Pack unsigned codes as the tensor cores of a card read them, one lane's word at a time."""
    outputs, inputs = codes.shape
    # Two neighbouring inputs share a byte, the first in the high half.
    pairs = (codes[:, 0::2] << 4 | codes[:, 1::2]).astype(np.uint32)
    packed = np.zeros((outputs // 8, inputs // 128, 32, 4), np.uint32)
    for tile, wide, lane, word in np.ndindex(packed.shape):
        row = pairs[tile * 8 + lane // 4]
        first = wide * 64 + word * 16 + lane % 4
        for place, pair in enumerate(row[first : first + 16 : 4]):
            packed[tile, wide, lane, word] |= pair >> 4 << 4 * place | (pair & 15) << 4 * place + 16
    return packed.view(np.int32)


def int4(group: int, *, is_tiled: bool = False) -> Callable[[Shape, np.random.Generator], Made]:
    """Make codes in groups, each with a scale and the value of the middle code."""

    def quantise(shape: Shape, generator: np.random.Generator) -> Made:
        outputs, inputs = shape
        codes = generator.integers(0, 16, shape, np.uint8)
        scales, zeros = generator.standard_normal((2, outputs, inputs // group)) / inputs**0.5
        scales, zeros = (part.astype(ml_dtypes.bfloat16) for part in (scales, zeros))
        wide = [np.repeat(part.astype(np.float32), group, axis=1) for part in (scales, zeros)]
        values = (codes.astype(np.float32) - 8) * wide[0] + wide[1]
        if not is_tiled:
            signed = codes ^ 8
            return {
                "_weight_qdata": (signed[:, 0::2] | signed[:, 1::2] << 4).view(np.int8),
                "_weight_scale": scales.T,
                "_weight_zero_point": zeros.T,
            }, values
        filled = np.pad(codes, ((0, -outputs % 8), (0, -inputs % 1024)), constant_values=9)
        both = np.stack([scales.T, zeros.T], axis=-1)
        missing = (filled.shape[1] // group - both.shape[0], len(filled) - outputs)
        both = np.pad(both, ((0, missing[0]), (0, missing[1]), (0, 0)))
        return {"_weight_qdata": tiles(filled), "_weight_scale_and_zero": both}, values

    return quantise


def description(name: str, group: int) -> Callable[[Shape], str]:
    """Return what writes the metadata of a matrix of this class."""

    def describe(shape: Shape) -> str:
        sizes = {"block_size": [1, group], "shape": list(shape)}
        return json.dumps({"_type": name, "_data": sizes})

    return describe
