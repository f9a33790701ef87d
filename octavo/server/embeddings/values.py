"""Vectors in base64, in the types and byte orders that clients may choose."""

from __future__ import annotations

import sys
from array import array
from base64 import b64encode
from collections.abc import Sequence
from struct import pack
from typing import Any, Literal

_LARGEST = 65504.0  # of float16


def in_base64(
    values: Sequence[float], kind: Literal["float32", "float16", "bfloat16"], order: str
) -> str:
    """Return the bytes of numbers; what a type cannot hold becomes the nearest that it can."""
    if kind == "float16":
        clamped = [max(-_LARGEST, min(_LARGEST, value)) for value in values]
        return b64encode(pack(f"{_mark(order)}{len(clamped)}e", *clamped)).decode()
    numbers: array[Any] = array("f", values)
    if kind == "bfloat16":
        numbers = _upper_halves(numbers)
    if _mark(order) != _mark(sys.byteorder):
        numbers.byteswap()
    return b64encode(numbers).decode()


def _mark(order: str) -> str:
    """Return the mark of a byte order in `struct`."""
    return ">" if (sys.byteorder if order == "native" else order) == "big" else "<"


def _upper_halves(numbers: array[float]) -> array[int]:
    """Return the upper two bytes of each number, rounded to the nearest and ties to even."""
    halves = array("H")
    for bits in array("I", numbers.tobytes()):
        halves.append(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF)
    return halves
