"""GPTQ's rows have the values that the format's description gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.loader.errors import CheckpointError, CorruptFileError
from octavo.models.values import Values
from octavo.quant.registry import formats_for
from tests.quant.made_up import MadeFormat, gptq
from tests.quant.one_module import INPUTS, OUTPUTS, read

CASES: dict[str, MadeFormat] = {
    "2 bits": gptq(2, 64),
    "2 bits, symmetric": gptq(2, 32, sym=True),
    "3 bits": gptq(3, 128),
    "3 bits, act-order": gptq(3, 32, act_order=True),
    "3 bits, a scale for a row": gptq(3, -1, version=2),
    "4 bits": gptq(4, 128),
    "4 bits, symmetric": gptq(4, 32, sym=True),
    "4 bits, symmetric, act-order": gptq(4, 32, sym=True, act_order=True),
    "4 bits, symmetric, a scale for a row": gptq(4, -1, sym=True),
    "4 bits, symmetric, act-order, a scale for a row": gptq(4, -1, sym=True, act_order=True),
    "4 bits, symmetric, groups of 16": gptq(4, 16, sym=True),
    "4 bits, version 2": gptq(4, 64, version=2),
    "4 bits, version 2 that claims to be 1": gptq(4, 64, version=2, stated=1, sym=True),
    "4 bits, act-order": gptq(4, 32, act_order=True),
    "4 bits, no index": gptq(4, 128, has_index=False),
    "4 bits, a scale for a row": gptq(4, -1),
    "8 bits": gptq(8, 128),
    "8 bits, symmetric": gptq(8, 64, sym=True),
    "8 bits, symmetric, version 2": gptq(8, 128, sym=True, version=2),
    "8 bits, act-order": gptq(8, 64, act_order=True, version=2),
    "8 bits, a scale for a row": gptq(8, -1, version=2),
    "a last group that is shorter": gptq(4, 96),
}


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_description(name: str, tmp_path: Path) -> None:
    rows, values = read(tmp_path, CASES[name])
    np.testing.assert_array_equal(rows.floats(), values)
    settings = CASES[name].settings
    is_ordered = settings["desc_act"] and settings["group_size"] != -1
    assert (rows.columns is not None) == is_ordered


@pytest.mark.parametrize(
    ("made", "type_"),
    [
        (gptq(4, 32, sym=True), "I4By32"),
        (gptq(4, 128, sym=True), "I4By128"),
        (gptq(4, -1, sym=True), "I4By32"),
        (gptq(4, 64), "I4ZeroBy64"),
        (gptq(4, 96), "I4ZeroBy32"),
        (gptq(3, 128), "I3ZeroBy128"),
        (gptq(2, 64, sym=True), "I2ZeroBy64"),
        (gptq(8, 128, sym=True), "I8By128"),
        (gptq(8, 128), "I8ZeroBy128"),
        (gptq(4, 16, sym=True), "INT4"),
        (gptq(4, 32, sym=True, act_order=True), "I4By32"),
    ],
)
def test_types_name_what_a_backend_must_know(made: MadeFormat, type_: str, tmp_path: Path) -> None:
    """Groups of sizes that no kernel has are named by their bits, whatever the order of inputs."""
    rows, values = read(tmp_path, made)
    assert rows.type == type_
    np.testing.assert_array_equal(rows.floats(), values)


@pytest.mark.parametrize(
    ("setting", "change"), [("sym is true", {}), ("desc_act is false", {"act_order": True})]
)
def test_a_file_that_contradicts_its_settings_is_refused(
    setting: str, change: dict[str, bool], tmp_path: Path
) -> None:
    made = gptq(4, 32, sym="act_order" in change, **change)
    made.settings.update(sym=True, desc_act=False)
    with pytest.raises(CorruptFileError, match=f"in which {setting}; correct the config.json"):
        read(tmp_path, made)


def test_rows_that_are_no_whole_groups_have_another_type(tmp_path: Path) -> None:
    made = gptq(4, 64, sym=True)
    rows, values = read(tmp_path, made, inputs=80)
    assert rows.type == "INT4"
    np.testing.assert_array_equal(rows.floats(), values)


@pytest.mark.parametrize("bits", [4, 8])
def test_rows_are_as_small_as_the_file(bits: int, tmp_path: Path) -> None:
    """Each group of 128 inputs has its codes, and eight bytes of scale and zero point."""
    rows, _ = read(tmp_path, gptq(bits, 128, act_order=True))
    assert rows.num_bytes == OUTPUTS * INPUTS // 128 * (128 * bits // 8 + 8)


def test_groups_of_unequal_size_are_refused(tmp_path: Path) -> None:
    owners = np.zeros(INPUTS, np.int32)
    with pytest.raises(CorruptFileError, match=r"'m.g_idx'.*128 inputs into each of the 2 groups"):
        read(tmp_path, gptq(4, 128), {"g_idx": owners})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": 5}, "of 5 bits are not supported; supported are: 2, 3, 4, 8"),
        ({"bits": "4"}, "bits must be a whole number"),
        ({"group_size": 0}, "group_size must be -1"),
        ({"group_size": 100}, "group_size must be .* is '100'"),
        ({"checkpoint_format": "marlin"}, "'marlin' are not supported"),
        ({"is_marlin_format": True}, "are not supported"),
        ({"checkpoint_format": None, "format": "bitblas"}, "'bitblas' are not supported"),
        ({"pack_dtype": "int16"}, "pack_dtype 'int16'"),
        ({"dynamic": {"+:.*down.*": {"bits": 5}}}, "of 5 bits"),
        ({"dynamic": {"+:.*down.*": 8}}, "must be an object"),
        ({"dynamic": ["-:lm_head"]}, "dynamic must be an object"),
        ({"dynamic": {"-:(": {}}}, "regex '\\('"),
    ],
)
def test_settings_that_are_not_supported_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        formats_for(Values({**gptq(4, 128).settings, **change}))


def test_a_module_may_be_excluded_from_quantisation() -> None:
    """The weight of such a module has the plain name, which the format does not claim."""
    formats_for(Values({**gptq(4, 128).settings, "dynamic": {"-:.*lm_head.*": {}}}))
