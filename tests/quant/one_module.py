"""One made-up module in a format, found and read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from octavo.backends.stored_rows import StoredRows
from octavo.loader.safetensors import open_safetensors
from octavo.models.values import Values
from octavo.quant.registry import formats_for
from tests.loader.make_files import write_safetensors
from tests.quant.made_up import Array, Floats, MadeFormat

INPUTS, OUTPUTS = 256, 40


def read(
    directory: Path,
    made: MadeFormat,
    change: dict[str, Array] | None = None,
    inputs: int = INPUTS,
) -> tuple[StoredRows, Floats]:
    """Write and find one module; return its rows and its values."""
    tensors, values = made.quantise((OUTPUTS, inputs), np.random.default_rng(0))
    arrays = {f"m.{name}": array for name, array in {**tensors, **(change or {})}.items()}
    path = directory / "model.safetensors"
    write_safetensors(path, arrays, made.metadata({"m.weight": (OUTPUTS, inputs)}))
    checkpoint = open_safetensors(path)
    (format_,) = formats_for(Values(made.settings))[1:]
    (matrix,) = format_.find(checkpoint)
    assert (matrix.name, matrix.shape) == ("m.weight", (OUTPUTS, inputs))
    assert set(matrix.tensors) == set(arrays)
    assert matrix.stored_shapes(matrix.shape) == {n: a.shape for n, a in arrays.items()}
    rows = matrix.rows()
    assert rows.type == matrix.type
    return rows, values
