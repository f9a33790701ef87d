"""Rows of groups of inputs, each group with a scale that multiplies its values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.backends.stored_rows import Bytes, Floats, RowLayout

# A scale for whole rows is repeated for groups of this size, so that ranks can cut the rows.
SMALL_GROUP = 32
ELEMENTS_AT_ONCE = 1 << 17  # so that temporary arrays stay in a core's own cache


def scaled_layout(
    name: str,
    group: int,
    block: np.dtype[Any],
    unscaled: Callable[[NDArray[Any], NDArray[np.float32]], None],
    *,
    has_zero_points: bool = False,
) -> RowLayout:
    """Return the layout of groups stored as `block`, which has a field `scale`.

    `unscaled` writes the values of some blocks before the scale multiplies them. A field `offset`,
    if there is one, is added to the products.
    """
    has_offsets = "offset" in (block.names or ())

    def decode(rows: Bytes) -> Floats:
        blocks = np.ascontiguousarray(rows).view(block)
        values = np.empty((*blocks.shape, group), np.float32)
        step = max(1, ELEMENTS_AT_ONCE // max(1, values[:1].size))
        for start in range(0, len(blocks), step):
            part, out = blocks[start : start + step], values[start : start + step]
            unscaled(part, out)
            with np.errstate(all="ignore"):  # damaged scales may be infinite or NaN
                out *= part["scale"][..., None]
                if has_offsets:
                    out += part["offset"][..., None]
        return values.reshape(len(rows), -1)

    return RowLayout(name, group, block.itemsize, decode, has_zero_points)
