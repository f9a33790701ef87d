"""NVFP4 in safetensors checkpoints: four-bit floats (E2M1) with an eight-bit scale for each 16.

A module X has [out, in/2] bytes with two numbers each, the first in the low half; a scale in E4M3
for each 16 inputs, `X.weight_scale` [out, in/16]; and one float for the whole matrix. Two tools
store them under names of their own:

- compressed-tensors: `X.weight_packed`, and `X.weight_global_scale`, which divides the scales;
- ModelOpt: `X.weight`, and `X.weight_scale_2`, which multiplies them.

Each group of a row keeps both scales, since matrices that are stacked for one product have
different ones: that of the matrix (float32), its own (E4M3), the codes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.backends.code_bits import unpacked
from octavo.backends.stored_rows import RowLayout, StoredRows
from octavo.loader.checkpoint import numpy_dtype
from octavo.loader.errors import CorruptFileError
from octavo.loader.tensor_type import F8_E4M3
from octavo.quant.scaled_groups import scaled_layout
from octavo.quant.weight_format import ModuleMatrix, Shape

GROUP = 16  # inputs that share a scale
BYTES = 8  # of a group
_BLOCK = np.dtype([("whole", "<f4"), ("scale", "u1"), ("codes", "u1", BYTES)])
_SPAN = 2 * GROUP  # inputs of which kernels take the scales together
_MAGNITUDES = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
_VALUES = np.array([*_MAGNITUDES, *(-value for value in _MAGNITUDES)], np.float32)


class Nvfp4Matrix(ModuleMatrix, frozen=True):
    """The matrix of one module."""

    is_modelopt: bool

    @property
    def type(self) -> str:
        return nvfp4_type(self.shape[1], is_divided=not self.is_modelopt)

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
        info = self.checkpoint.info(scale)
        if info.type != F8_E4M3:
            raise CorruptFileError(
                f"is of the type {info.type.name}, must be {F8_E4M3.name}",
                path=info.path,
                tensor=scale,
            )
        scales = self.checkpoint.read(scale).view(np.uint8)
        pairs = self.checkpoint.read(codes).view(np.uint8)
        made = np.zeros(scales.shape, _BLOCK)
        made["scale"] = scales
        made["whole"] = self.checkpoint.read_float32(whole).reshape(1, 1)
        missing = scales.shape[1] * BYTES - pairs.shape[1]
        pairs = np.pad(pairs, ((0, 0), (0, missing))) if missing else pairs
        made["codes"] = pairs.reshape(made["codes"].shape)
        rows = made.view(np.uint8).reshape(len(made), -1)
        layout = nvfp4_layout(self.type, is_divided=not self.is_modelopt)
        return StoredRows(layout, self.shape[1], rows)


def nvfp4_type(inputs: int, *, is_divided: bool) -> str:
    """Name rows; those with a group that no other follows have no type that kernels know."""
    by = "" if inputs % _SPAN else f"By{GROUP}"
    return f"NVFP4{'Divided' if is_divided else ''}{by}"


@cache
def nvfp4_layout(name: str, *, is_divided: bool) -> RowLayout:
    """Return the layout of groups of four-bit floats, each group with its scales."""
    join = np.divide if is_divided else np.multiply

    def unscaled(blocks: NDArray[Any], out: NDArray[np.float32]) -> None:
        np.take(_VALUES, unpacked(blocks["codes"], 4), out=out)

    def scales(blocks: NDArray[Any]) -> NDArray[np.float32]:
        own = blocks["scale"].view(numpy_dtype(F8_E4M3)).astype(np.float32)
        joined: NDArray[np.float32] = join(own, blocks["whole"])
        return joined

    return scaled_layout(name, GROUP, _BLOCK, unscaled, scales=scales)
