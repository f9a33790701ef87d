"""Stored rows, and whether they are views of the file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from octavo.loader.safetensors import open_safetensors
from octavo.quant.plain import tensor_rows


def write_matrix(path: Path, values: np.ndarray, header_bytes: int) -> None:
    """Write a safetensors file with a header of a given length."""
    entry = {"dtype": "F32", "shape": values.shape, "data_offsets": [0, values.nbytes]}
    header = json.dumps({"w": entry}).encode().ljust(header_bytes)
    assert len(header) == header_bytes
    path.write_bytes(header_bytes.to_bytes(8, "little") + header + values.tobytes())


@pytest.mark.parametrize(("header_bytes", "is_file"), [(104, True), (105, False)])
def test_a_copied_tensor_is_not_marked_as_a_view_of_the_file(
    tmp_path: Path, header_bytes: int, is_file: bool
) -> None:
    """The pages of a copy must not be released: they would be read again as zeros."""
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    write_matrix(tmp_path / "model.safetensors", values, header_bytes)
    rows = tensor_rows(open_safetensors(tmp_path / "model.safetensors"), "w")
    assert rows.is_file == is_file
    np.testing.assert_array_equal(rows.floats(), values)
