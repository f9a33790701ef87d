"""AWQ's rows have the values that the format's description gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.loader.errors import CheckpointError, CorruptFileError
from octavo.models.values import Values
from octavo.quant.registry import formats_for
from tests.quant.made_up import MadeFormat, awq
from tests.quant.one_module import OUTPUTS, read

CASES: dict[str, MadeFormat] = {
    "gemm": awq(128),
    "gemm, groups of 32": awq(32),
    "gemm, a scale for a row": awq(-1),
    "gemm, old settings": awq(64, is_old=True),
    "gemm, symmetric": awq(64, zero_point=False),
    "gemm, symmetric, groups of 16": awq(16, zero_point=False),
    "gemv": awq(128, layout="gemv"),
    "gemv, groups of 64": awq(64, layout="gemv"),
    "gemv, groups of 32": awq(32, layout="gemv"),
    "gemv, a scale for a row": awq(-1, layout="gemv"),
    "gemv, symmetric": awq(32, layout="gemv", zero_point=False),
    "gemv, old settings": awq(128, layout="gemv", is_old=True),
}


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_description(name: str, tmp_path: Path) -> None:
    rows, values = read(tmp_path, CASES[name])
    np.testing.assert_array_equal(rows.floats(), values)
    group = CASES[name].settings.get("group_size", 0)
    if group != 16:
        assert rows.type.startswith("I4By" if "symmetric" in name else "I4ZeroBy")


@pytest.mark.parametrize("layout", ["gemm", "gemv"])
def test_rows_too_long_for_one_step_are_joined(layout: str, tmp_path: Path) -> None:
    """Codes are read some outputs at a time, which here are fewer than there are."""
    inputs = 128 * 65  # not a power of two, so that the last step is shorter
    rows, values = read(tmp_path, awq(128, layout=layout), inputs=inputs)
    assert OUTPUTS * inputs > 2 * (1 << 17)
    np.testing.assert_array_equal(rows.floats(), values)


@pytest.mark.parametrize("layout", ["exllama", "ExllamaV2", "ipex"])
def test_programs_that_read_gemm_name_it(layout: str, tmp_path: Path) -> None:
    made = awq(64)
    made.settings["version"] = layout
    rows, values = read(tmp_path, made)
    np.testing.assert_array_equal(rows.floats(), values)


def test_the_layout_may_be_called_format(tmp_path: Path) -> None:
    made = awq(64, layout="gemv")
    made.settings["format"] = made.settings.pop("version").lower()
    rows, values = read(tmp_path, made)
    np.testing.assert_array_equal(rows.floats(), values)


@pytest.mark.parametrize("layout", ["gemm", "gemv"])
def test_zero_points_that_the_settings_deny_are_refused(layout: str, tmp_path: Path) -> None:
    made = awq(64, layout=layout)
    made.settings["zero_point"] = False
    with pytest.raises(CorruptFileError) as caught:
        read(tmp_path, made)
    assert caught.value.tensor == "m.qzeros"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": 8}, "of 8 bits"),
        ({"bits": None, "w_bit": 3}, "of 3 bits"),
        ({"bits": None}, "w_bit is missing"),
        ({"group_size": 100}, "group_size must be .* is '100'"),
        ({"group_size": None, "q_group_size": 0}, "q_group_size must be .* is '0'"),
        ({"group_size": 16, "version": "gemv"}, "in the layout gemv, is 16"),
        ({"version": "gemv_fast"}, "'gemv_fast'"),
        ({"version": "Marlin"}, "'marlin'"),
        ({"version": None, "format": "llm-awq"}, "'llm-awq'"),
        ({"version": 1}, "version must be"),
        ({"zero_point": 1}, "zero_point must be"),
    ],
)
def test_settings_that_are_not_supported_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        formats_for(Values({**awq(128).settings, **change}))
