"""Weights on their way to the device: in the type of the file, some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from octavo.backends.base import FLOAT_TYPES
from octavo.backends.stored_rows import StoredRows
from octavo.backends.torch.device import Array, TensorDevice

# Of a matrix, copied at once: pinned memory is that of the machine, and has a bound.
PART_BYTES = 16 << 20
_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def put(target: Tensor, parts: Sequence[StoredRows], home: TensorDevice) -> None:
    """Write the rows of these parts, one below the other, into a matrix of the device.

    Floats are copied as they are stored and converted there. Codes are decoded on the host.
    """
    begin = 0
    for part in parts:
        for rows in _cut(part):
            (copied,) = home.upload([_content(rows)])
            if rows.type in FLOAT_TYPES:
                copied = copied.view(_TYPES[rows.type])[:, : rows.inputs]
                if rows.columns is not None:
                    (order,) = home.upload([np.argsort(rows.columns)])
                    copied = copied.index_select(1, order)
            target[begin : begin + len(rows)] = copied.to(target.dtype)
            begin += len(rows)


def _cut(part: StoredRows) -> Iterator[StoredRows]:
    """Yield a part in pieces of bounded size."""
    row_bytes = max(part.rows.shape[1], 4 * part.inputs)
    step = max(1, PART_BYTES // row_bytes)
    for start in range(0, len(part), step):
        yield part.cut(start, min(len(part), start + step))


def _content(rows: StoredRows) -> Array:
    """Return the stored bytes of floats, or the values of codes."""
    if rows.type not in FLOAT_TYPES:
        return rows.floats()
    stored = rows.array
    return stored if rows.order is None else stored[rows.order]
