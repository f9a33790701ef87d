"""A maker of weights whose matrices are rounded to bfloat16, whatever type their file has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from octavo.backends.base import WeightMaker
from octavo.backends.stored_rows import StoredRows
from octavo.layers import Module, Value
from octavo.loader.tensor_type import BF16
from octavo.quant.plain import layout_of


class RoundedMaker:
    """A maker of weights in front of another one; implements `octavo.backends.base.WeightMaker`."""

    def __init__(self, inner: WeightMaker) -> None:
        self._inner = inner

    def parameter(self, array: NDArray[Any]) -> Value:
        return self._inner.parameter(array)

    def matrix(self, parts: Sequence[StoredRows], module: Module) -> Value:
        return self._inner.matrix([rounded(part) for part in parts], module)

    def experts(self, matrices: Sequence[Sequence[StoredRows]], module: Module) -> Value:
        rows = [[rounded(part) for part in parts] for parts in matrices]
        return self._inner.experts(rows, module)


def rounded(rows: StoredRows) -> StoredRows:
    """Return rows in bfloat16."""
    values = rows.floats().astype(ml_dtypes.bfloat16)
    return StoredRows(layout_of(BF16), rows.inputs, np.ascontiguousarray(values).view(np.uint8))
