"""Rows of codes of four bits into a table of 16 floats, in groups with a scale each.

Two codes are in a byte, the first in the high half. The table comes with the file, so that the
layout of each matrix has its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from octavo.backends.stored_rows import Bytes, Floats, RowLayout
from octavo.quant.scaled_groups import scaled_layout

TABLE = 16  # values of a code of four bits


def table_rows(
    codes: NDArray[np.uint8], scales: Floats, table: Floats, name: str
) -> tuple[RowLayout, Bytes]:
    """Join codes [rows, groups, bytes] and scales [rows, groups] to rows, and return their layout.

    The value of a code is table[code] · scale.
    """
    block = _block(codes.shape[-1])
    made = np.empty(scales.shape, block)
    made["scale"], made["codes"] = scales, codes
    # Each byte's two values side by side.
    pairs = np.stack((np.repeat(table, TABLE), np.tile(table, TABLE)), axis=1)

    def unscaled(blocks: NDArray[Any], out: NDArray[np.float32]) -> None:
        np.take(pairs, blocks["codes"], axis=0, out=out.reshape(*blocks["codes"].shape, 2))

    layout = scaled_layout(name, codes.shape[-1] * 2, block, unscaled)
    return replace(layout, table=table.tobytes()), made.view(np.uint8).reshape(
        len(made), scales.shape[1] * block.itemsize
    )


def _block(num_bytes: int) -> np.dtype[np.void]:
    return np.dtype([("scale", "<f4"), ("codes", "u1", num_bytes)])
