"""Codes of 2 to 8 bits in bytes: as streams of bits, and in the places of 4 or 8 bits of rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

# Elements that are decoded together: temporary arrays in float32 stay in a core's own cache.
ELEMENTS_AT_ONCE = 1 << 17


def place_bits(bits: int) -> int:
    """Return the bits in which a row keeps a code: 4 or 8."""
    return 4 if bits <= 4 else 8


def unpacked(data: Bytes, bits: int) -> Bytes:
    """Split the bytes of the last axis into codes of 2 to 8 bits, the lowest bits first."""
    if bits == 8:
        return data
    top = (1 << bits) - 1
    if 8 % bits:  # eight codes in as many bytes as a code has bits
        missing = -data.shape[-1] % bits
        if missing:
            data = np.pad(data, [(0, 0)] * (data.ndim - 1) + [(0, missing)])
        parts = data.reshape(*data.shape[:-1], -1, bits).astype(np.uint64)
        joined = np.zeros(parts.shape[:-1], np.uint64)
        for place in range(bits):
            joined |= parts[..., place] << np.uint64(8 * place)
        shifts = np.arange(0, 8 * bits, bits, dtype=np.uint64)
        codes = (joined[..., None] >> shifts & np.uint64(top)).astype(np.uint8)
    else:
        codes = np.empty((*data.shape, 8 // bits), np.uint8)
        for place in range(8 // bits):
            np.bitwise_and(data >> np.uint8(bits * place), top, out=codes[..., place])
    return codes.reshape(*data.shape[:-1], -1)


def packed(codes: Bytes, bits: int) -> Bytes:
    """Join codes [outputs, inputs] into their places, the first in the lowest bits."""
    if place_bits(bits) == 8:
        return codes
    if codes.shape[1] % 2:
        codes = np.pad(codes, ((0, 0), (0, 1)))
    joined: Bytes = codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)
    return joined
