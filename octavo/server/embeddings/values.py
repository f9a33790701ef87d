"""Vectors as bytes and in base64, in the types and byte orders that clients may choose."""

from __future__ import annotations

import sys
from array import array
from base64 import b64encode
from collections.abc import Sequence
from struct import pack
from typing import Any, Literal

_LARGEST = 65504.0  # of float16


Kind = Literal["float32", "float16", "bfloat16"]
NUMBER_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


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
    numbers: array[Any] = array("f", values)
    if kind == "bfloat16":
        numbers = _upper_halves(numbers)
    if _mark(order) != _mark(sys.byteorder):
        numbers.byteswap()
    return numbers.tobytes()


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
