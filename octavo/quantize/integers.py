"""Symmetric integers of 4 and 8 bits, as compressed-tensors stores them: packed, or as bytes.

A scale is for a group of inputs or for a whole row. Codes are signed; packed ones have half of the
range added, and stand in words of 32 bits, the first in the lowest bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from octavo.backends.code_bits import packed
from octavo.loader.checkpoint import numpy_dtype
from octavo.loader.safetensors import TYPES
from octavo.quantize.packer import Array, Floats, Part
from octavo.quantize.scales import best_scales, positive, stored_scales

WORD_BITS = 32
# Parts of a group's peak that the largest code is tried for.
_RATIOS = {4: (1.0, 0.94, 0.88, 0.82, 0.76, 0.7), 8: (1.0, 0.98, 0.95, 0.9)}


class Integers(Struct, frozen=True):
    """Integers of so many bits."""

    bits: int
    group_size: int | None  # inputs that share a scale; None: all of a row
    is_packed: bool

    @property
    def group(self) -> int:
        return self.group_size or (WORD_BITS // self.bits if self.is_packed else 1)

    @property
    def needs_peak(self) -> bool:
        return False

    @property
    def _top(self) -> int:
        return (1 << (self.bits - 1)) - 1

    def settings(self) -> dict[str, Any]:
        strategy = "group" if self.group_size else "channel"
        return {
            "num_bits": self.bits,
            "type": "int",
            "symmetric": True,
            "strategy": strategy,
            "group_size": self.group_size,
        }

    def parts(self, shape: tuple[int, int], scale_type: str) -> tuple[Part, ...]:
        outputs, inputs = shape
        scale = Part("weight_scale", scale_type, (outputs, inputs // (self.group_size or inputs)))
        if not self.is_packed:
            return Part("weight", "I8", shape), scale
        words = Part("weight_packed", "I32", (outputs, inputs * self.bits // WORD_BITS))
        return words, scale, Part("weight_shape", "I64", (2,), has_rows=False)

    def pack(self, values: Floats, scale_type: str, peak: float) -> Mapping[str, Array]:
        scales = self.scales(values, scale_type)
        groups = values.reshape(*scales.shape, -1)
        codes = self.nearest(groups / positive(scales)[..., None]).astype(np.int8)
        return self.stored(codes.reshape(values.shape), scales, scale_type)

    def rounded(self, values: Floats, scale_type: str) -> Floats:
        """Return the values that rows are packed to."""
        scales = self.scales(values, scale_type)
        groups = values.reshape(*scales.shape, -1)
        made = self.nearest(groups / positive(scales)[..., None]) * scales[..., None]
        return made.reshape(values.shape)

    def scales(self, values: Floats, scale_type: str, importance: Floats | None = None) -> Floats:
        """Choose the scales [rows, groups], as they are stored; importance is that of inputs."""
        size = self.group_size or values.shape[1]
        groups = values.reshape(-1, size)
        weights = None
        if importance is not None:
            whole = np.broadcast_to(importance.astype(np.float32), values.shape)
            weights = np.ascontiguousarray(whole).reshape(groups.shape)
        best = best_scales(groups, self._top, _RATIOS[self.bits], self.nearest, weights)
        return stored_scales(best, scale_type).reshape(len(values), -1)

    def stored(self, codes: Array, scales: Floats, scale_type: str) -> Mapping[str, Array]:
        """Return the parts of some rows, from signed codes and scales."""
        found = {"weight_scale": scales.astype(numpy_dtype(TYPES[scale_type]))}
        if not self.is_packed:
            return {**found, "weight": codes}
        middle = np.uint8(1 << (self.bits - 1))
        joined = packed(codes.view(np.uint8) + middle, self.bits)
        return {**found, "weight_packed": np.ascontiguousarray(joined).view(np.int32)}

    def whole(self, shape: tuple[int, int], peak: float) -> Mapping[str, Array]:
        return {"weight_shape": np.array(shape, np.int64)} if self.is_packed else {}

    def nearest(self, values: Floats) -> Floats:
        """Round values to codes, in their place."""
        np.rint(values, out=values)
        return np.clip(values, -self._top - 1, self._top, out=values)
