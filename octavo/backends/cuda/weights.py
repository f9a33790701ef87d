"""Weights on their way to the device: in the type of the file, some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from octavo.backends.base import FLOAT_TYPES
from octavo.backends.eight_bit_rows import codes_and_scales, scale_group
from octavo.backends.stored_rows import StoredRows
from octavo.backends.torch.device import TensorDevice
from octavo.backends.torch.eight_bits import CODES, of_groups

# Of a matrix, copied at once: pinned memory is that of the machine, and has a bound.
PART_BYTES = 16 << 20
_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def put(target: Tensor, parts: Sequence[StoredRows], home: TensorDevice) -> None:
    """Write the rows of these parts, one below the other, into a matrix of the device.

    Floats, of eight bits too, are copied as they are stored and converted there. Other codes are
    decoded on the host.
    """
    begin = 0
    for part in parts:
        group = scale_group([part])
        for rows in _cut(part):
            if rows.type in FLOAT_TYPES:
                copied = _floats(rows, home)
            elif group:
                copied = of_groups(*_codes(rows, group, home), group, target.dtype)
            else:
                (copied,) = home.upload([rows.floats()])
            target[begin : begin + len(rows)] = copied.to(target.dtype)
            begin += len(rows)


def put_codes(
    target: Tensor, scales: Tensor, parts: Sequence[StoredRows], group: int, home: TensorDevice
) -> None:
    """Write rows of eight bits, whose scales are for groups of inputs, as they are stored."""
    begin = 0
    for part in parts:
        for rows in _cut(part):
            end = begin + len(rows)
            target[begin:end], scales[begin:end] = _codes(rows, group, home)
            begin = end


def _cut(part: StoredRows) -> Iterator[StoredRows]:
    """Yield a part in pieces of bounded size."""
    row_bytes = max(part.rows.shape[1], 4 * part.inputs)
    step = max(1, PART_BYTES // row_bytes)
    for start in range(0, len(part), step):
        yield part.cut(start, min(len(part), start + step))


def _floats(rows: StoredRows, home: TensorDevice) -> Tensor:
    """Copy floats in their stored type."""
    stored = rows.array
    (copied,) = home.upload([stored if rows.order is None else stored[rows.order]])
    copied = copied.view(_TYPES[rows.type])[:, : rows.inputs]
    if rows.columns is None:
        return copied
    (order,) = home.upload([np.argsort(rows.columns)])
    return copied.index_select(1, order)


def _codes(rows: StoredRows, group: int, home: TensorDevice) -> tuple[Tensor, Tensor]:
    """Copy codes of eight bits and their scales."""
    codes, scales = home.upload(codes_and_scales(rows, group))
    return codes.view(CODES), scales
