"""Vectors as bytes and in base64, in the types and byte orders that clients may choose."""

from __future__ import annotations

import sys
from array import array
from base64 import b64encode
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from math import copysign
from struct import pack
from typing import Any, Literal

_LARGEST = 65504.0  # of float16


Kind = Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"]
NUMBER_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}


def _eighths(bits: int, bias: int, most: int) -> tuple[float, ...]:
    """Return the numbers of the codes 0 to `most` of a type of one byte, in their order.

    `bits` of a code are its mantissa, and those above are its exponent.
    """
    numbers = []
    for code in range(most + 1):
        exponent, mantissa = code >> bits, code & ((1 << bits) - 1)
        whole = mantissa + (1 << bits if exponent else 0)
        numbers.append(whole * 2.0 ** (max(exponent, 1) - bias - bits))
    return tuple(numbers)


# Without those that are no numbers, or infinite.
_CODES = {"fp8_e4m3": _eighths(3, 7, 0x7E), "fp8_e5m2": _eighths(2, 15, 0x7B)}
_MIDDLES = {
    kind: [(low + high) / 2 for low, high in pairwise(numbers)] for kind, numbers in _CODES.items()
}


def in_base64(values: Sequence[float], kind: Kind, order: str) -> str:
    """Return the bytes of numbers, in base64."""
    return b64encode(in_bytes(values, kind, order)).decode()


def in_bytes(values: Sequence[float], kind: Kind, order: str) -> bytes:
    """Return the bytes of numbers; what a type cannot hold becomes the nearest that it can."""
    if kind == "float16":
        form = f"{_mark(order)}{len(values)}e"
        try:
            packed = pack(form, *values)
        except OverflowError:
            packed = pack(form, *(max(-_LARGEST, min(_LARGEST, value)) for value in values))
        return packed
    if kind in _MIDDLES:
        return _in_codes(values, _MIDDLES[kind])
    numbers: array[Any] = array("f", values)
    if kind == "bfloat16":
        numbers = _upper_halves(numbers)
    if _mark(order) != _mark(sys.byteorder):
        numbers.byteswap()
    return numbers.tobytes()


def _in_codes(values: Sequence[float], middles: Sequence[float]) -> bytes:
    """Return a byte for each number, rounded to the nearest code and ties to even."""
    codes = bytearray()
    for value in values:
        size = abs(value)
        code = bisect_left(middles, size)
        if code & 1 and code < len(middles) and middles[code] == size:
            code += 1
        codes.append(code | (0x80 if copysign(1.0, value) < 0 else 0))
    return bytes(codes)


def _mark(order: str) -> str:
    """Return the mark of a byte order in `struct`."""
    return ">" if (sys.byteorder if order == "native" else order) == "big" else "<"


def _upper_halves(numbers: array[float]) -> array[int]:
    """Return the upper two bytes of each number, rounded to the nearest and ties to even.

    All numbers are lanes of one whole number, whose arithmetic is far faster than a loop.
    """
    order = sys.byteorder
    ones = int.from_bytes((1).to_bytes(4, order) * len(numbers), order)
    bits = int.from_bytes(numbers.tobytes(), order)
    rounded = bits + ((bits >> 16) & ones) + 0x7FFF * ones
    halves = array("H", rounded.to_bytes(4 * len(numbers), order))
    return halves[1::2] if order == "little" else halves[::2]
