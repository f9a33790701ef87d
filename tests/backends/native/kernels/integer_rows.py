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
    "I8ZeroBy32": "U8Zero",
    "I8ZeroBy64": "U8ZeroBy64",
    "I8ZeroBy128": "U8ZeroBy128",
    "I4MidBy32": "U4Mid",
    "I4MidBy64": "U4MidBy64",
    "I4MidBy128": "U4MidBy128",
    "I3ZeroBy32": "U3Zero",
    "I3ZeroBy64": "U3ZeroBy64",
    "I3ZeroBy128": "U3ZeroBy128",
    "I2ZeroBy32": "U2Zero",
    "I2ZeroBy64": "U2ZeroBy64",
    "I2ZeroBy128": "U2ZeroBy128",
}
# Those that are made in no other way, by format: of one kind, with the same kernels, one.
ZERO_POINTS = {
    FORMATS[name]: name
    for name in (
        *("I4ZeroBy32", "I4ZeroBy64", "I4ZeroBy128"),
        *("I8ZeroBy128", "I4MidBy64", "I3ZeroBy128", "I2ZeroBy64"),
    )
}


def integer_kind(name: str, inputs: int) -> IntegerKind:
    """Return the kind of rows with a type's name."""
    found = re.fullmatch(r"I(\d)(Zero|Mid)?(?:By(\d+)|Wide)", name)
    assert found is not None
    bits, group = int(found[1]), int(found[3]) if found[3] else None
    made = kind_of(
        bits,
        inputs,
        group,
        is_symmetric=not found[2],
        takes_int8=group is None,
        zeros_are_values=found[2] == "Mid",
    )
    assert made.name == name
    return made


def integer_blocks(name: str, outputs: int, inputs: int, scale: float, seed: int = 0) -> Bytes:
    """Return rows with random codes and zero points, and scales of fp16 around `scale`.

    Some zero points are no whole numbers; those that are values of codes are around the scale.
    """
    kind = integer_kind(name, inputs)
    generator = np.random.default_rng(seed)
    blocks = np.zeros((outputs, inputs // kind.group), kind.block)
    codes = generator.integers(0, 256, blocks["codes"].shape)
    blocks["codes"] = codes & {2: 0x33, 3: 0x77}.get(kind.bits, 0xFF)  # in places of four bits
    signs = generator.choice([-1.0, 1.0], blocks.shape)
    blocks["scale"] = (signs * scale * generator.uniform(0.5, 1.0, blocks.shape)).astype(np.float16)
    if name == "I8Wide":
        blocks["scale"] = blocks["scale"][:, :1]
    if kind.has_zeros:
        most = 1 << kind.bits
        zeros = np.asarray(generator.integers(0, most + 1, blocks.shape), np.float32)
        zeros[::2] = np.asarray(generator.uniform(0, most, zeros[::2].shape), np.float16)
        if kind.zeros_are_values:
            zeros[:] = np.asarray(generator.normal(0, scale, blocks.shape), np.float16)
        blocks["zero"] = zeros
    return blocks.view(np.uint8).reshape(outputs, -1)


def pack_integers(name: str, stored: Bytes, inputs: int) -> PackedMatrix:
    number = getattr(_native.Stored, name).value
    return _native_test.pack(FORMATS[name], number, list(stored), inputs)


def values_of(name: str, stored: Bytes, inputs: int) -> Floats:
    """Return what the rows mean."""
    return integer_layout(integer_kind(name, inputs)).decode(stored)
