"""Rows of groups of inputs, each group with a scale that multiplies its values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.backends.code_bits import ELEMENTS_AT_ONCE
from octavo.backends.stored_rows import Bytes, Floats, RowLayout

# A scale for whole rows is repeated for groups, so that ranks can cut the rows: small ones, unless
# as many ranks as are likely can share the inputs by large ones.
SMALL_GROUP = 32
_LARGE_GROUP, _RANKS = 128, 8


def group_or_repeated(group: int | None, inputs: int) -> int:
    """Return a file's group of inputs that share a scale, or the one for scales of whole rows."""
    return group or (_LARGE_GROUP if inputs % (_LARGE_GROUP * _RANKS) == 0 else SMALL_GROUP)


def named_group(group: int, inputs: int, sizes: Sequence[int]) -> int:
    """Return the largest of some sizes in which whole groups and rows divide; 0 if none does."""
    named = next((size for size in sizes if group % size == 0), 0)
    return named if named and inputs % named == 0 else 0


def _stored_scales(blocks: NDArray[Any]) -> NDArray[np.float32]:
    scales: NDArray[np.float32] = blocks["scale"]
    return scales


def scaled_layout(
    name: str,
    group: int,
    block: np.dtype[Any],
    unscaled: Callable[[NDArray[Any], NDArray[np.float32]], None],
    *,
    has_zero_points: bool = False,
    scales: Callable[[NDArray[Any]], NDArray[np.float32]] = _stored_scales,
    offset: str | None = None,
) -> RowLayout:
    """Return the layout of groups stored as `block`.

    `unscaled` writes the values of some blocks before the scale multiplies them, which is their
    field `scale` unless `scales` makes it. The field `offset`, if one is named, is added to the
    products.
    """

    def decode(rows: Bytes) -> Floats:
        blocks = np.ascontiguousarray(rows).view(block)
        values = np.empty((*blocks.shape, group), np.float32)
        step = max(1, ELEMENTS_AT_ONCE // max(1, values[:1].size))
        for start in range(0, len(blocks), step):
            part, out = blocks[start : start + step], values[start : start + step]
            unscaled(part, out)
            with np.errstate(all="ignore"):  # damaged scales may be infinite or NaN
                out *= scales(part)[..., None]
                if offset is not None:
                    out += part[offset][..., None]
        return values.reshape(len(rows), -1)

    return RowLayout(name, group, block.itemsize, decode, has_zero_points)
