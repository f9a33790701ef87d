"""Small floats, as compressed-tensors stores them: FP8 (E4M3), NVFP4 and MXFP4 (both E2M1).

FP8 has a scale for each row. NVFP4 has one in E4M3 for each 16 inputs, and a number that divides
those of a matrix: it is the same for the matrices of one parent (q, k, v; gate, up), since others
compute them as one. MXFP4 has a power of two for each 32 inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from octavo.backends.code_bits import packed
from octavo.loader.checkpoint import numpy_dtype
from octavo.loader.safetensors import TYPES
from octavo.loader.tensor_type import F8_E4M3
from octavo.quant.methods.mxfp4 import GROUP as MX_GROUP
from octavo.quant.methods.nvfp4 import GROUP as NV_GROUP
from octavo.quantize.packer import Array, Floats, Part
from octavo.quantize.scales import best_scales, peaks, positive, stored_scales

E4M3 = numpy_dtype(F8_E4M3)
_MOST_E4M3, _MOST_E2M1 = 448.0, 6.0
_LAST_E4M3 = 0x7E  # the code of 448
# A quarter of an octave apart: the grid of a float repeats itself after an octave.
_FP8_RATIOS = (1.0, 2**0.25, 2**0.5, 2**0.75)
# Codes of scales, from the one that brings a group's peak to 6 to the one that brings it to 4.
_NVFP4_STEPS = range(5)
_MXFP4_STEPS = (0, -1)  # powers of two: the least that brings the peak to at most 6, and its half
_MX_BIAS = 127


def nearest_float(values: Floats, mantissa: int, least_exponent: int) -> Floats:
    """Round to a float of so many bits of mantissa, whose smallest normal is 2^least_exponent.

    Halves are rounded to even. Nothing is clipped.
    """
    exponents = values.view(np.uint32) & np.uint32(0x7F800000)
    octaves = np.maximum(exponents.view(np.float32), np.float32(2.0**least_exponent))
    # A number whose last bit is worth as much as the rounded value's: adding it rounds.
    octaves *= np.float32(1.5 * 2.0 ** (23 - mantissa))
    rounded: Floats = (values + octaves) - octaves
    return rounded


def nearest_e4m3(values: Floats) -> Floats:
    """Round to E4M3, at most 448."""
    return np.clip(nearest_float(values, 3, -6), -_MOST_E4M3, _MOST_E4M3)


def nearest_e2m1(values: Floats) -> Floats:
    """Round to E2M1, at most 6."""
    return np.clip(nearest_float(values, 1, 0), -_MOST_E2M1, _MOST_E2M1)


def e2m1_pairs(values: Floats) -> Array:
    """Join the codes of E2M1 values in bytes, the first of two in the low half."""
    doubled = (values + values).astype(np.int8)
    return packed(_E2M1_CODES[doubled + np.int8(12)], 4)


# The code of each value, by twice the value plus 12: 0, 0.5, 1, 1.5, 2, 3, 4, 6, then the negative.
_E2M1_CODES = np.zeros(25, np.uint8)
for _code, _doubled in enumerate((0, 1, 2, 3, 4, 6, 8, 12)):
    _E2M1_CODES[12 - _doubled] = _code | 8
    _E2M1_CODES[12 + _doubled] = _code


class Fp8(Struct, frozen=True):
    """Floats of eight bits, with a scale for each row."""

    group: int = 1
    needs_peak: bool = False

    def settings(self) -> dict[str, Any]:
        return {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}

    def parts(self, shape: tuple[int, int], scale_type: str) -> tuple[Part, ...]:
        scale = Part("weight_scale", scale_type, (shape[0], 1))
        return Part("weight", F8_E4M3.name, shape), scale

    def pack(self, values: Floats, scale_type: str, peak: float) -> Mapping[str, Array]:
        best = best_scales(values, _MOST_E4M3, _FP8_RATIOS, nearest_e4m3)
        scales = stored_scales(best, scale_type)[:, None]
        codes = nearest_e4m3(values / positive(scales))
        kind = numpy_dtype(TYPES[scale_type])
        return {"weight": codes.astype(E4M3), "weight_scale": scales.astype(kind)}

    def whole(self, shape: tuple[int, int], peak: float) -> Mapping[str, Array]:
        return {}


class Nvfp4(Struct, frozen=True):
    """Floats of four bits, with a scale in E4M3 for each 16 inputs."""

    group: int = NV_GROUP
    needs_peak: bool = True

    def settings(self) -> dict[str, Any]:
        strategy = {"strategy": "tensor_group", "group_size": NV_GROUP}
        return {"num_bits": 4, "type": "float", "symmetric": True, **strategy}

    def parts(self, shape: tuple[int, int], scale_type: str) -> tuple[Part, ...]:
        outputs, inputs = shape
        return (
            Part("weight_packed", "U8", (outputs, inputs // 2)),
            Part("weight_scale", F8_E4M3.name, (outputs, inputs // NV_GROUP)),
            Part("weight_global_scale", "F32", (1,), has_rows=False),
        )

    def pack(self, values: Floats, scale_type: str, peak: float) -> Mapping[str, Array]:
        groups = values.reshape(-1, NV_GROUP)
        divisor = _divisor(peak)
        first = (peaks(groups) * (divisor / np.float32(_MOST_E2M1))).astype(E4M3).view(np.uint8)
        # Positive floats are ordered as their codes are.
        tried = [
            np.clip(first.astype(np.int16) + step, 1, _LAST_E4M3).astype(np.uint8)
            for step in _NVFP4_STEPS
        ]
        scales, codes = _least_error(groups, [code.view(E4M3) for code in tried], divisor)
        shape = (len(values), -1)
        return {
            "weight_packed": e2m1_pairs(codes.reshape(values.shape)),
            "weight_scale": scales.reshape(shape),
        }

    def whole(self, shape: tuple[int, int], peak: float) -> Mapping[str, Array]:
        return {"weight_global_scale": np.array([_divisor(peak)], np.float32)}


class Mxfp4(Struct, frozen=True):
    """Floats of four bits, with a power of two for each 32 inputs."""

    group: int = MX_GROUP
    needs_peak: bool = False

    def settings(self) -> dict[str, Any]:
        strategy = {"strategy": "group", "group_size": MX_GROUP}
        return {"num_bits": 4, "type": "float", "symmetric": True, **strategy}

    def parts(self, shape: tuple[int, int], scale_type: str) -> tuple[Part, ...]:
        outputs, inputs = shape
        packed_part = Part("weight_packed", "U8", (outputs, inputs // 2))
        return packed_part, Part("weight_scale", "U8", (outputs, inputs // MX_GROUP))

    def pack(self, values: Floats, scale_type: str, peak: float) -> Mapping[str, Array]:
        groups = values.reshape(-1, MX_GROUP)
        part, exponent = np.frexp(peaks(groups))  # peak = part · 2^exponent, part from 1/2 to 1
        # The least power of two that brings the peak to at most 6, which is 3/4 of 8.
        first = exponent - 3 + (part > np.float32(_MOST_E2M1 / 8))
        tried = [np.clip(first + step, -126, 125).astype(np.int32) for step in _MXFP4_STEPS]
        powers = [np.ldexp(np.float32(1), each) for each in tried]
        scales, codes = _least_error(groups, powers, np.float32(1))
        exponents = np.frexp(scales)[1] - 1 + _MX_BIAS
        return {
            "weight_packed": e2m1_pairs(codes.reshape(values.shape)),
            "weight_scale": exponents.astype(np.uint8).reshape(len(values), -1),
        }

    def whole(self, shape: tuple[int, int], peak: float) -> Mapping[str, Array]:
        return {}


def _divisor(peak: float) -> np.float32:
    """Return the number that divides the scales: the peak's scale becomes the largest there is."""
    return np.float32(_MOST_E4M3 * _MOST_E2M1 / peak if peak > 0 else 1.0)


def _least_error(groups: Floats, tried: list[Array], divisor: np.float32) -> tuple[Array, Floats]:
    """Return of some scales for each group the one of the least squared error, and the values."""
    best = tried[0].copy()
    codes = np.zeros_like(groups)
    least = np.full(len(groups), np.inf, np.float32)
    for scales in tried:
        scale = scales.astype(np.float32) / divisor
        rounded = nearest_e2m1(groups / scale[:, None])
        error = rounded * scale[:, None]
        error -= groups
        squared = np.einsum("gi,gi->g", error, error)
        is_better = squared < least
        np.copyto(least, squared, where=is_better)
        np.copyto(best, scales, where=is_better)
        np.copyto(codes, rounded, where=is_better[:, None])
    return best, codes
