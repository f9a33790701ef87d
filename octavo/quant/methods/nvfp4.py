"""NVFP4 in safetensors checkpoints: four-bit floats (E2M1) with an eight-bit scale for each 16.

A module X has [out, in/2] bytes with two numbers each, the first in the low half; a scale in E4M3
for each 16 inputs, `X.weight_scale` [out, in/16]; and one float for the whole matrix. Two tools
store them under names of their own:

- compressed-tensors: `X.weight_packed`, and `X.weight_global_scale`, which divides the scales;
- ModelOpt: `X.weight`, and `X.weight_scale_2`, which multiplies them.

The rows keep the product of both scales in float32, since matrices that are stacked for one product
have different ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from octavo.backends.code_bits import unpacked
from octavo.backends.stored_rows import RowLayout, StoredRows
from octavo.quant.scaled_groups import scaled_layout
from octavo.quant.weight_format import ModuleMatrix, Shape

GROUP = 16  # inputs that share a scale
BYTES = 8  # of a group
_BLOCK = np.dtype([("scale", "<f4"), ("codes", "u1", BYTES)])
_MAGNITUDES = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
_VALUES = np.array([*_MAGNITUDES, *(-value for value in _MAGNITUDES)], np.float32)


class Nvfp4Matrix(ModuleMatrix, frozen=True):
    """The matrix of one module."""

    is_modelopt: bool
    type: ClassVar[str] = "NVFP4"

    @property
    def tensors(self) -> tuple[str, ...]:
        endings = ("", "_scale", "_scale_2")
        if not self.is_modelopt:
            endings = ("_packed", "_scale", "_global_scale")
        return tuple(self.name + ending for ending in endings)

    @property
    def shape(self) -> Shape:
        outputs, pairs = self.checkpoint.info(self.tensors[0]).shape
        return outputs, pairs * 2

    def stored_shapes(self, shape: Shape) -> Mapping[str, Shape]:
        codes, scale, whole = self.tensors
        outputs, inputs = shape
        single = self.checkpoint.info(whole).shape
        return {
            codes: (outputs, -(-inputs // 2)),
            scale: (outputs, -(-inputs // GROUP)),
            whole: single if math.prod(single) == 1 else (),
        }

    def rows(self) -> StoredRows:
        codes, scale, whole = self.tensors
        scales = self.checkpoint.read_float32(scale)
        single = self.checkpoint.read_float32(whole).reshape(1, 1)
        pairs = self.checkpoint.read(codes).view(np.uint8)
        made = np.zeros(scales.shape, _BLOCK)
        with np.errstate(all="ignore"):  # damaged scales may be infinite, NaN or 0
            made["scale"] = scales * single if self.is_modelopt else scales / single
        missing = scales.shape[1] * BYTES - pairs.shape[1]
        pairs = np.pad(pairs, ((0, 0), (0, missing))) if missing else pairs
        made["codes"] = pairs.reshape(made["codes"].shape)
        rows = made.view(np.uint8).reshape(len(made), -1)
        return StoredRows(nvfp4_layout(), self.shape[1], rows)


@cache
def nvfp4_layout() -> RowLayout:
    """Return the layout of groups of four-bit floats, each group with its scale."""

    def unscaled(blocks: NDArray[Any], out: NDArray[np.float32]) -> None:
        np.take(_VALUES, unpacked(blocks["codes"], 4), out=out)

    return scaled_layout(Nvfp4Matrix.type, GROUP, _BLOCK, unscaled)
