"""Rows of integers with the types that the native engine knows, of random codes."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from octavo.backends.native import _native
from octavo.quant.integers import IntegerKind, integer_layout, kind_of
from tests.backends.native import _native_test
from tests.backends.native._native_test import PackedMatrix

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# The stored type → the format that it is kept in.
FORMATS = {
    "I4By32": "U4",
    "I4By64": "U4By64",
    "I4By128": "U4By128",
    "I4ZeroBy32": "U4Zero",
    "I4ZeroBy64": "U4ZeroBy64",
    "I4ZeroBy128": "U4ZeroBy128",
    "I8By32": "U8",
    "I8By64": "U8By64",
    "I8By128": "U8By128",
    "I8Wide": "U8Wide",
}
ZERO_POINTS = {format_: name for name, format_ in FORMATS.items() if "Zero" in name}


def integer_kind(name: str, inputs: int) -> IntegerKind:
    """Return the kind of rows with a type's name."""
    found = re.fullmatch(r"I(\d)(Zero)?(?:By(\d+)|Wide)", name)
    assert found is not None
    bits, group = int(found[1]), int(found[3]) if found[3] else None
    made = kind_of(bits, inputs, group, is_symmetric=not found[2], takes_int8=group is None)
    assert made.name == name
    return made


def integer_blocks(name: str, outputs: int, inputs: int, scale: float, seed: int = 0) -> Bytes:
    """Return rows with random codes and zero points, and scales of fp16 around `scale`."""
    kind = integer_kind(name, inputs)
    generator = np.random.default_rng(seed)
    blocks = np.zeros((outputs, inputs // kind.group), kind.block)
    blocks["codes"] = generator.integers(0, 256, blocks["codes"].shape)
    signs = generator.choice([-1.0, 1.0], blocks.shape)
    blocks["scale"] = (signs * scale * generator.uniform(0.5, 1.0, blocks.shape)).astype(np.float16)
    if name == "I8Wide":
        blocks["scale"] = blocks["scale"][:, :1]
    if kind.has_zeros:
        blocks["zero"] = generator.integers(0, 17, blocks.shape)
    return blocks.view(np.uint8).reshape(outputs, -1)


def pack_integers(name: str, stored: Bytes, inputs: int) -> PackedMatrix:
    number = getattr(_native.Stored, name).value
    return _native_test.pack(FORMATS[name], number, list(stored), inputs)


def values_of(name: str, stored: Bytes, inputs: int) -> Floats:
    """Return what the rows mean."""
    return integer_layout(integer_kind(name, inputs)).decode(stored)
