"""Rows of eight-bit floats as files store them: their codes, and their scales apart from these.

The codes are those of E4M3, and a scale multiplies the values of some inputs of a row, or of all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.backends.code_bits import Bytes
from octavo.backends.made_rows import MadeRows, group_block
from octavo.backends.stored_rows import StoredRows

Scales = NDArray[np.float32]
EIGHT_BIT_TYPES = ("FP8", "F8By128", "F8By32")


def scale_group(parts: Sequence[StoredRows]) -> int:
    """Return how many inputs of these rows share a scale; 0 if they are not of one such form.

    All inputs do where a scale is for whole rows, also where a file's rows repeat it.
    """
    found = {_group_of(part) for part in parts}
    return found.pop() if len(found) == 1 else 0


def codes_and_scales(part: StoredRows, group: int) -> tuple[Bytes, Scales]:
    """Return the codes [rows, inputs], and the scales [rows, groups], in the order of the rows."""
    codes, scales = _codes(part), _scales(part)
    scales = np.ascontiguousarray(scales[:, : -(-part.inputs // group)], np.float32)
    if part.layout.factor is not None:
        with np.errstate(all="ignore"):  # a damaged scale may be infinite or NaN
            scales = scales * part.layout.factor
    return codes, scales


def input_scale(parts: Sequence[StoredRows]) -> float | None:
    """Return the scale by which the file has the inputs of these rows rounded, if all have one.

    Parts of one product read the same inputs, which the largest scale keeps in range.
    """
    found = [part.layout.input_scale for part in parts]
    known = [scale for scale in found if scale is not None]
    return max(known) if found and len(known) == len(found) else None


def _group_of(part: StoredRows) -> int:
    if part.type not in EIGHT_BIT_TYPES or part.columns is not None:
        return 0
    rows = part.rows
    if isinstance(rows, MadeRows):
        is_one = rows.tensors.scale_group >= rows.tensors.inputs
    else:
        scales = _stored_scales(part)
        is_one = bool((scales == scales[:, :1]).all())
    return part.inputs if is_one else part.layout.group


def _codes(part: StoredRows) -> Bytes:
    rows, group = part.rows, part.layout.group
    if isinstance(rows, MadeRows):
        first = rows.first_group * group
        codes = rows.tensors.codes_of(rows.start, rows.stop)[:, first : first + part.inputs]
    else:
        blocks = np.ascontiguousarray(rows).view(group_block(group, 8, has_zeros=False))
        codes = blocks["codes"].reshape(len(rows), -1)[:, : part.inputs]
    return codes if part.order is None else codes[part.order]


def _scales(part: StoredRows) -> NDArray[np.float32]:
    rows = part.rows
    if isinstance(rows, MadeRows):
        tensors = rows.tensors
        groups = np.arange(rows.first_group, rows.end_group) * tensors.group // tensors.scale_group
        outputs = np.arange(rows.start, rows.stop) // tensors.scale_outputs
        scales = tensors.scales[outputs[:, None], groups].astype(np.float32)
    else:
        scales = _stored_scales(part)
    return scales if part.order is None else scales[part.order]


def _stored_scales(part: StoredRows) -> NDArray[np.float32]:
    """Return the scales [stored rows, groups] of rows in memory."""
    rows = np.ascontiguousarray(part.array)
    scales: NDArray[np.float32] = rows.view(group_block(part.layout.group, 8, has_zeros=False))[
        "scale"
    ]
    return scales
