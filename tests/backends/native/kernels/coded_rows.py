"""Rows whose codes stand for floats, of random codes."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from octavo.backends.native import _native
from octavo.backends.stored_rows import RowLayout
from octavo.quant.methods.bitsandbytes import TABLES
from octavo.quant.methods.fp8 import fp8_layout
from octavo.quant.methods.nvfp4 import nvfp4_layout
from octavo.quant.methods.tables import table_rows
from tests.backends.native._native_test import PackedMatrix
from tests.backends.native.kernels.gemm_cases import Stored, pack

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

FORMATS = (
    "F8By32",
    "F8By128",
    "NF4By64",
    "FP4By64",
    "NVFP4By16",
)  # each is the name of the stored type too
_NAN = 0x7F  # the bits of E4M3 beside the sign


def _table_layout(group: int, name: str) -> RowLayout:
    codes, scales = np.zeros((1, 1, group // 2), np.uint8), np.zeros((1, 1), np.float32)
    return table_rows(codes, scales, TABLES[name[:3].lower()], name)[0]


_LAYOUTS: dict[str, Callable[[int, str], RowLayout]] = {
    "F8": fp8_layout,
    "NF4": _table_layout,
    "FP4": _table_layout,
    "NVFP4": lambda group, name: nvfp4_layout(name, is_divided=False),
    "NVFP4Divided": lambda group, name: nvfp4_layout(name, is_divided=True),
}


def layout_of(name: str) -> RowLayout:
    found = re.fullmatch(r"(\w+)By(\d+)", name)
    assert found is not None
    return _LAYOUTS[found[1]](int(found[2]), name)


def coded_blocks(name: str, outputs: int, inputs: int, scale: float, seed: int = 0) -> Bytes:
    """Return rows with random codes, none of them NaN, and scales around `scale`."""
    layout = layout_of(name)
    generator = np.random.default_rng(seed)
    groups = inputs // layout.group
    rows = generator.integers(0, 256, (outputs, groups, layout.group_bytes)).astype(np.uint8)
    if name.startswith("F8"):
        rows[rows & _NAN == _NAN] = 0
    # One scale for all groups where each has a second one of its own, which is an E4M3 float.
    has_own = name.startswith("NVFP4")
    if has_own:
        own = rows[..., 4]
        own[own & _NAN == _NAN] = 0
    signs = generator.choice([-1.0, 1.0], (outputs, 1 if has_own else groups, 1))
    scales = signs * scale * generator.uniform(0.5, 1.0, signs.shape)
    rows[..., :4] = scales.astype(np.float32).view(np.uint8)
    return rows.reshape(outputs, -1)


def pack_coded(name: str, stored: Bytes, inputs: int) -> PackedMatrix:
    format_ = name.replace("Divided", "")
    return pack(format_, Stored(getattr(_native.Stored, name).value, list(stored), inputs))


def coded_matrix(name: str, outputs: int, inputs: int = 384, scale: float = 0.05) -> PackedMatrix:
    return pack_coded(name, coded_blocks(name, outputs, inputs, scale), inputs)
