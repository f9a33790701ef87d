"""Types of PTX as those of numpy, and the registers of a block's threads."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[Any]
Mask = NDArray[np.bool_]

TYPES: dict[str, Any] = {
    "pred": np.bool_,
    "b8": np.uint8,
    "u8": np.uint8,
    "s8": np.int8,
    "b16": np.uint16,
    "u16": np.uint16,
    "s16": np.int16,
    "b32": np.uint32,
    "u32": np.uint32,
    "s32": np.int32,
    "f32": np.float32,
    "b64": np.uint64,
    "u64": np.uint64,
    "s64": np.int64,
    "f64": np.float64,
}
_HEX_FLOAT = re.compile(r"^0([fFdD])([0-9a-fA-F]+)$")
_ADDRESS = re.compile(r"^([%\w]+?)(?:\+(-?\w+))?$")


def register_type(name: str) -> Any:
    """Return the type of a register by its name, as Triton's code has them."""
    if name.startswith("%p"):
        return np.bool_
    if name.startswith("%rs"):
        return np.uint16
    return np.uint64 if name.startswith("%rd") else np.uint32


def from_bf16(bits: Values) -> Values:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bf16(values: Values) -> Values:
    """Return the bits of the nearest numbers, even ones among equally near ones."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FFF), rounded)


def _from_fp16(bits: Values) -> Values:
    return bits.view(np.float16).astype(np.float32)


def _to_fp16(values: Values) -> Values:
    return values.astype(np.float16).view(np.uint16)


class Short(NamedTuple):
    """A type of floats that are computed as float32."""

    wide: Callable[[Values], Values]  # the numbers of bits
    bits: Callable[[Values], Values]


SHORT = {"bf16": Short(from_bf16, to_bf16), "f16": Short(_from_fp16, _to_fp16)}


def listed(operand: str) -> list[str]:
    """Return the registers of a vector `{a, b}`, or the one that is none."""
    return [each.strip() for each in operand.strip("{} ").split(",")]


class Registers:
    """The registers of all threads of a block, and what operands mean."""

    def __init__(
        self, num_threads: int, place: tuple[int, int, int], grid: tuple[int, ...]
    ) -> None:
        self.threads = np.arange(num_threads)
        self.every = np.ones(num_threads, bool)  # the mask of all threads, known by its identity
        self._constants: dict[tuple[str, str], Values] = {}
        self._kept: dict[str, Values] = {}
        wide = (*grid, 1, 1)
        zero = np.zeros(num_threads, np.int64)
        self._special = {"%tid.x": self.threads, "%tid.y": zero, "%tid.z": zero}
        for axis, index in zip("xyz", range(3), strict=True):
            self._special[f"%ctaid.{axis}"] = zero + place[index]
            self._special[f"%nctaid.{axis}"] = zero + wide[index]

    def get(self, name: str) -> Values:
        """Return a register of all threads, to read or to change."""
        if name not in self._kept:
            self._kept[name] = np.zeros(len(self.threads), register_type(name))
        return self._kept[name]

    def value(self, operand: str, kind: str) -> Values:
        """Return an operand of all threads, as numbers of a type."""
        wanted = TYPES[kind]
        if operand in self._special:
            return self._special[operand].astype(wanted)
        if operand.startswith("%"):
            kept = self.get(operand)
            if kept.dtype == np.bool_ or wanted is np.bool_:
                return kept
            same = kept.dtype.itemsize == np.dtype(wanted).itemsize
            return kept.view(wanted) if same else kept.astype(wanted)
        if operand == "global_smem":
            return np.zeros(len(self.threads), wanted)
        key = operand, kind
        if key not in self._constants:
            self._constants[key] = np.full(len(self.threads), _constant(operand, wanted))
        return self._constants[key]

    def put(self, name: str, values: Values, where: Mask) -> None:
        """Write a register of some threads; values of the same size keep their bits."""
        kept = self.get(name)
        if kept.dtype != np.bool_ and values.dtype != kept.dtype:
            same = values.dtype.itemsize == kept.dtype.itemsize
            contiguous = np.ascontiguousarray(values)
            values = contiguous.view(kept.dtype) if same else contiguous.astype(kept.dtype)
        if where is self.every:
            kept[:] = values
        else:
            kept[where] = values[where]

    def address(self, operand: str) -> NDArray[np.int64]:
        """Return the addresses of an operand `[register + number]`."""
        found = _ADDRESS.match(operand.strip("[] ").replace(" ", ""))
        assert found is not None, operand
        base = self.value(found[1], "s64" if found[1].startswith("%rd") else "s32")
        return base.astype(np.int64) + (int(found[2], 0) if found[2] else 0)


def _constant(text: str, wanted: Any) -> Any:
    found = _HEX_FLOAT.match(text)
    if found is not None:
        bits = int(found[2], 16)
        if found[1] in "fF":
            return np.uint32(bits).view(np.float32)
        return np.uint64(bits).view(np.float64)
    number = int(text.removesuffix("U"), 0)
    if wanted in (np.bool_, np.float32, np.float64):
        return wanted(number)
    size = np.dtype(wanted).itemsize
    return np.array(number % (1 << (8 * size)), f"u{size}").view(wanted)[()]
