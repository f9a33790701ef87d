"""The rows of a tensor that is a matrix by itself: plain numbers, and every type of GGUF."""

from __future__ import annotations

import math
from functools import cache
from mmap import mmap
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from octavo.backends.stored_rows import Bytes, Floats, RowLayout, StoredRows
from octavo.loader import Checkpoint
from octavo.loader.checkpoint import numpy_dtype
from octavo.loader.dequantize import dequantize
from octavo.loader.tensor_type import TensorType


@cache
def layout_of(kind: TensorType) -> RowLayout:
    """Return the layout of rows of a type."""
    dtype = numpy_dtype(kind)

    def decode(rows: Bytes) -> Floats:
        return dequantize(rows.view(dtype), kind)

    return RowLayout(kind.name, kind.block_elements, kind.block_bytes, decode)


def tensor_rows(checkpoint: Checkpoint, name: str, index: int | None = None) -> StoredRows:
    """Return the rows of a tensor, or of one slice along its first axis; a vector is one row."""
    info = checkpoint.info(name)
    values = np.atleast_1d(checkpoint.read(name))
    if index is not None:
        values = values[index]
    flat = values.reshape(math.prod(values.shape[:-1]), values.shape[-1])
    layout, rows = layout_of(info.type), flat.view(np.uint8)
    inputs = rows.shape[1] // layout.group_bytes * layout.group
    return StoredRows(layout, inputs, rows, is_file=is_mapped(rows))


def multiplied(rows: StoredRows, factor: np.float32) -> StoredRows:
    """Return the same stored rows, whose values are multiplied by a number of the matrix."""
    layout = rows.layout

    def decode(stored: Bytes) -> Floats:
        values = layout.decode(stored)
        with np.errstate(all="ignore"):  # a damaged factor may be infinite or NaN
            values *= factor
        return values

    return replace(rows, layout=replace(layout, decode=decode, factor=factor))


def is_mapped(values: NDArray[Any]) -> bool:
    """Return whether an array is a view of a mapped file; misaligned tensors are copied."""
    owner: object = values
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    return isinstance(owner, mmap)
