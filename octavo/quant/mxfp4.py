"""MXFP4 in safetensors checkpoints: four-bit floats with a power of two for each group of 32.

`name_blocks` is [out, in/32, 16] bytes, with the even element of each pair in the low half of its
byte; `name_scales` is [out, in/32] exponents plus 127. Axes before those (experts) are kept. GGUF
orders the same numbers differently: the exponent precedes its 16 bytes, whose low halves are the
first 16 elements.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

GROUP = 32  # elements that share a scale
BYTES = 16  # of a group

# The values of the sixteen codes of E2M1: sign, two bits of exponent, one of mantissa.
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_VALUES = np.array([*_MAGNITUDES, *(-value for value in _MAGNITUDES)], np.float32)


def stored_shapes(shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of the blocks and of the scales of a [..., in] matrix."""
    groups = (*shape[:-1], -(-shape[-1] // GROUP))
    return (*groups, BYTES), groups


def gguf_rows(blocks: NDArray[Any], scales: NDArray[Any]) -> NDArray[np.uint8]:
    """Return all rows as GGUF stores them: [rows, bytes]."""
    pairs = blocks.view(np.uint8)
    low, high = pairs[..., : BYTES // 2], pairs[..., BYTES // 2 :]
    made = np.empty((*pairs.shape[:-1], 1 + BYTES), np.uint8)
    made[..., 0] = scales.view(np.uint8)
    made[..., 1::2] = low & 15 | high << 4
    made[..., 2::2] = low >> 4 | high & 0xF0
    return made.reshape(-1, made.shape[-2] * made.shape[-1])


def dequantize(blocks: NDArray[Any], scales: NDArray[Any]) -> NDArray[np.float32]:
    """Return the numbers [..., in]; exact, since each is a small float times a power of two."""
    packed = blocks.view(np.uint8)
    values = np.empty((*packed.shape, 2), np.float32)
    np.take(_VALUES, packed & 15, out=values[..., 0])
    np.take(_VALUES, packed >> 4, out=values[..., 1])
    numbers = values.reshape(*packed.shape[:-1], GROUP)
    exponents = scales.view(np.uint8).astype(np.int32) - 127
    np.multiply(numbers, np.ldexp(np.float32(1), exponents)[..., None], out=numbers)
    return numbers.reshape(*packed.shape[:-2], -1)
