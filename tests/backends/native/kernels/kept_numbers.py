"""What each format of the KV cache keeps of keys and values, computed apart from the kernels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

FORMATS = ("f32", "bf16", "int8", "e4m3", "e5m2", "int4")
# Of numbers of 8 bits: the bits of the mantissa, the bias of the exponent, the largest code.
FLOAT8 = {"e4m3": (3, 7, 0x7E), "e5m2": (2, 15, 0x7B)}


def float8_values(kind: str) -> Doubles:
    """Return the numbers of all finite codes without a sign, the smallest first."""
    mantissa, bias, largest = FLOAT8[kind]
    codes = np.arange(largest + 1)
    exponents, fractions = codes >> mantissa, (codes & ((1 << mantissa) - 1)) / (1 << mantissa)
    normal = (1 + fractions) * 2.0 ** (exponents - bias)
    return np.where(exponents > 0, normal, fractions * 2.0 ** (1 - bias))


def to_bf16(x: Floats) -> Floats:
    bits = x.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
    return rounded.astype(np.uint32).view(np.float32)


def to_float8(x: NDArray[np.floating], kind: str) -> Doubles:
    """Return the nearest number of each, that of the even code if two are as near."""
    values, sizes = float8_values(kind), np.abs(x).astype(np.float64)
    above = np.clip(np.searchsorted(values, sizes), 1, len(values) - 1)
    below = above - 1
    high, low = values[above] - sizes, sizes - values[below]
    is_high = np.where(high == low, above % 2 == 0, high < low)
    return np.copysign(np.where(is_high, values[above], values[below]), x)


def scales_of(kind: str, rows: Floats) -> Floats:
    """Return the scale of each row."""
    most = np.abs(rows).max(axis=1)
    if kind == "int4":
        is_positive = rows.max(axis=1) > -rows.min(axis=1)
        return np.where(is_positive, -most, most) / np.float32(8)
    largest = 127 if kind == "int8" else float8_values(kind)[-1]
    scales: Floats = most / np.float32(largest)
    return scales


def mix_block(head_dim: int) -> int:
    """Return the largest power of two that divides the size of a head."""
    return head_dim & -head_dim


def mixed(x: NDArray[np.floating], head_dim: int) -> NDArray[np.floating]:
    """Multiply the heads' rows by Hadamard's matrix, block by block."""
    block, half = mix_block(head_dim), 1
    out = x.reshape(-1, block)
    while half < block:
        pairs = out.reshape(len(out), -1, 2, half)
        out = np.stack((pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]), axis=2)
        out, half = out.reshape(-1, block), 2 * half
    return out.reshape(x.shape)


def kept(kind: str, x: Floats, head_dim: int) -> Doubles:
    """Return x rounded as the cache stores it."""
    if kind == "f32":
        return x.astype(np.float64)
    if kind == "bf16":
        return to_bf16(x).astype(np.float64)
    rows = x.reshape(-1, head_dim)
    scales = scales_of(kind, rows)[:, None]
    parts = rows / np.where(scales != 0, scales, np.float32(1))
    if kind in FLOAT8:
        codes = to_float8(parts, kind)
    else:
        codes = np.rint(parts).astype(np.float64)
        low, high = (-127, 127) if kind == "int8" else (-8, 7)
        assert codes.min() >= low
        codes = np.minimum(codes, high)
    return (codes * scales).reshape(x.shape)
