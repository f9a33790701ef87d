"""SqueezeLLM's rows have the values that the format's description gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.loader.errors import (
    CheckpointError,
    CorruptFileError,
    TensorMismatchError,
    UnsupportedFormatError,
)
from octavo.models.values import Values
from octavo.quant.registry import formats_for
from tests.quant.made_up import MadeFormat, squeezellm
from tests.quant.test_bitsandbytes import INPUTS, OUTPUTS, Change, read

CASES: dict[str, MadeFormat] = {
    "4 bits": squeezellm(4),
    "4 bits, outliers": squeezellm(4, outliers=9),
    "4 bits, outliers and whole rows": squeezellm(4, outliers=9, full=3),
    "4 bits, whole rows": squeezellm(4, full=1),
    "3 bits": squeezellm(3),
    "3 bits, outliers": squeezellm(3, outliers=2),
}


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_description(name: str, tmp_path: Path) -> None:
    rows, values = read(tmp_path, CASES[name])
    np.testing.assert_array_equal(rows.floats(), values)
    np.testing.assert_array_equal(rows.cut_inputs(5, 64).floats(), values[:, 5:64])


STARTS = np.zeros(OUTPUTS + 1, np.int32)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"lookup_table": None}, TensorMismatchError, "'m.lookup_table'"),
        ({"lookup_table": np.ones((40, 8))}, TensorMismatchError, r"\[40, 8\].*\[40, 16\]"),
        ({"qweight": np.ones((9, 40), np.int32)}, TensorMismatchError, r"\[9, 40\].*\[32, 40\]"),
        ({"vals": None}, TensorMismatchError, "'m.vals'"),
        ({"rows": None}, TensorMismatchError, "'m.rows'"),
        ({"cols": None}, TensorMismatchError, "'m.cols'"),
        ({"full_rows": None}, TensorMismatchError, "'m.full_rows'"),
        ({"full_row_indices": None}, TensorMismatchError, "'m.full_row_indices'"),
        ({"vals": np.ones(3, np.float32)}, TensorMismatchError, r"'m.vals'"),
        ({"rows": STARTS[:-1]}, TensorMismatchError, r"\[40\].*\[41\]"),
        ({"rows": STARTS}, CorruptFileError, "does not divide"),
        ({"rows": STARTS - 1}, CorruptFileError, "index outside"),
        ({"rows": STARTS + 1000}, CorruptFileError, "index outside"),
        ({"rows": STARTS.astype(np.int64)}, CorruptFileError, "type I32"),
        ({"full_row_indices": np.full(2, OUTPUTS, np.int32)}, CorruptFileError, "of the 40"),
        ({"full_row_indices": np.full(2, -1, np.int32)}, CorruptFileError, "of the 40"),
    ],
)
def test_a_damaged_matrix_is_one_clear_error(
    change: Change, error: type[CheckpointError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        read(tmp_path, squeezellm(4, outliers=5, full=2), change)


@pytest.mark.parametrize(("bits", "inputs"), [(3, 40), (4, 36)])
def test_codes_that_fill_no_words_are_refused(bits: int, inputs: int, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFormatError, match=f"codes of {inputs} inputs do not fill"):
        read(tmp_path, squeezellm(bits), inputs=inputs)


@pytest.mark.parametrize("column", [-1, INPUTS])
def test_outliers_must_be_inside_the_matrix(column: int, tmp_path: Path) -> None:
    made = squeezellm(4, outliers=5)
    tensors, _ = made.quantise((OUTPUTS, INPUTS), np.random.default_rng(0))
    columns = tensors["cols"].copy()
    columns[3] = column
    with pytest.raises(CorruptFileError, match=r"'m.cols'.*of the 256"):
        read(tmp_path, made, {"cols": columns})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"wbits": 2}, "of 2 bits are not supported; supported are: 3, 4"),
        ({"bits": 8}, "of 8 bits are not supported"),
        ({}, "wbits is missing"),
        ({"wbits": "4"}, "wbits must be a whole number"),
    ],
)
def test_settings_that_are_not_supported_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        formats_for(Values({"quant_method": "squeezellm", **settings}))
