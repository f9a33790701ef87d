"""Tensors that the native engine makes rows of while it packs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.backends.made_rows import MadeRows
from octavo.backends.native import _native
from octavo.backends.stored_rows import StoredRows

_FLOATS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def row_tensors(parts: Sequence[StoredRows], *, has_values: bool) -> list[_native.RowTensors]:
    """Return the tensors of each part; an empty list if rows are in memory.

    `has_values` asks for the values of the rows instead of their groups.
    """
    made = []
    for part in parts:
        rows = part.rows
        if not isinstance(rows, MadeRows) or not len(rows):
            return []
        made.append(_row_tensors(rows, part if has_values else None))
    return made


def _row_tensors(rows: MadeRows, values_of: StoredRows | None) -> _native.RowTensors:
    tensors, zeros = rows.tensors, rows.tensors.zeros
    are_bytes = zeros is None or zeros.dtype == np.uint8
    return _native.RowTensors(
        inputs=tensors.inputs,
        codes=tensors.codes,
        is_of_eight=tensors.is_of_eight,
        parts=tensors.parts,
        bits=tensors.bits,
        flipped=tensors.flipped,
        scales=_as_bits(tensors.scales),
        scale_type=_type_of(tensors.scales),
        scale_outputs=tensors.scale_outputs,
        scale_group=tensors.scale_group,
        zeros=None if zeros is None else _as_bits(zeros),
        zero_type=None if zeros is None or are_bytes else _type_of(zeros),
        middle=tensors.middle,
        has_zeros=tensors.has_zeros,
        zeros_are_values=tensors.zeros_are_values,
        columns=tensors.columns,
        group=tensors.group,
        first_group=rows.first_group,
        end_group=rows.end_group,
        has_values=values_of is not None,
        table=tensors.table,
        places=None if values_of is None else values_of.columns,
    )


def _as_bits(numbers: NDArray[Any]) -> NDArray[Any]:
    """Return numbers as an array of a type that has a name outside of numpy."""
    return numbers.view(np.uint16) if numbers.dtype.name == "bfloat16" else numbers


def _type_of(numbers: NDArray[Any]) -> _native.Stored:
    found: _native.Stored = getattr(_native.Stored, _FLOATS[numbers.dtype.name])
    return found


def numbers_of(part: StoredRows, number: int) -> NDArray[Any]:
    """Return the numbers by which the engine finds the rows of a part among all parts' tensors."""
    assert isinstance(part.rows, MadeRows)
    rows = (part.rows.start + part.indices()).astype(np.uint64)
    return rows | np.uint64((number + 1) << 32)
