"""Rows of types that the kernels cannot read, as int8 with a scale for 32 inputs."""

from __future__ import annotations

import numpy as np

from octavo.backends.code_bits import ELEMENTS_AT_ONCE
from octavo.backends.stored_rows import Bytes, Floats, RowLayout, StoredRows

GROUP = 32

_BLOCK = np.dtype([("scale", "<f2"), ("codes", "i1", GROUP)])  # GGUF's Q8_0
_MOST_CODE = np.float32(127)


def _decode(rows: Bytes) -> Floats:
    blocks = np.ascontiguousarray(rows).view(_BLOCK)
    values: Floats = blocks["codes"] * blocks["scale"].astype(np.float32)[..., None]
    return values.reshape(len(rows), -1)


_LAYOUT = RowLayout("Q8_0", GROUP, _BLOCK.itemsize, _decode)


def eight_bits(rows: StoredRows) -> StoredRows:
    """Convert rows of whole groups, a few at a time, so that few floats exist at once.

    The codes are those that the native engine chooses for float32. A group with a number that is
    not finite gets the scale NaN.
    """
    blocks = np.empty((len(rows), rows.inputs // GROUP), _BLOCK)
    step = max(1, ELEMENTS_AT_ONCE // rows.inputs)
    for start in range(0, len(rows), step):
        values = rows.cut(start, min(start + step, len(rows))).floats()
        groups = values.reshape(len(values), -1, GROUP)
        part = blocks[start : start + step]
        # Damaged scales may be infinite or NaN, and scales of groups of zeros are zero.
        with np.errstate(all="ignore"):
            largest = np.maximum(groups.max(-1), -groups.min(-1))
            part["scale"] = largest / _MOST_CODE
            part["scale"][~np.isfinite(largest)] = np.nan
            wide = part["scale"].astype(np.float32)[..., None]
            codes = np.rint(groups / wide)
            np.clip(codes, -_MOST_CODE, _MOST_CODE, out=codes)
        if not (wide > 0).all():
            codes[~np.isfinite(codes)] = 0
        part["codes"] = codes
    return StoredRows(_LAYOUT, rows.inputs, blocks.view(np.uint8).reshape(len(rows), -1))
