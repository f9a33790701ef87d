"""Modules of one checkpoint may have settings of their own, in GPTQ's words and in AutoRound's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.loader.errors import CheckpointError
from octavo.loader.safetensors import open_safetensors
from octavo.models.checkpoint_weights import CheckpointWeights
from octavo.models.values import Values
from octavo.quant.module_names import MAX_PATTERNS
from octavo.quant.registry import formats_for
from tests.loader.make_files import write_safetensors
from tests.quant.made_up import Array, Floats, MadeFormat, auto_round, awq, gptq
from tests.quant.one_module import read

SHAPE = (16, 128)
ATTENTION, UP, DOWN, HEAD = "m.0.attn.q", "m.0.mlp.up", "m.1.mlp.down", "lm_head"


def check(directory: Path, settings: dict[str, Any], modules: dict[str, MadeFormat | None]) -> None:
    """Write modules in several formats, or plainly; all must have their values."""
    arrays: dict[str, Array] = {}
    expected: dict[str, Floats] = {}
    generator = np.random.default_rng(0)
    for module, made in modules.items():
        if made is None:
            tensors, values = {}, generator.standard_normal(SHAPE, np.float32)
            tensors["weight"] = values
        else:
            tensors, values = made.quantise(SHAPE, generator)
        arrays |= {f"{module}.{name}": np.ascontiguousarray(each) for name, each in tensors.items()}
        expected[f"{module}.weight"] = values
    path = write_safetensors(directory / "model.safetensors", arrays)
    weights = CheckpointWeights(open_safetensors(path), formats_for(Values(settings)))
    assert weights.shapes() == dict.fromkeys(expected, SHAPE)
    for name, values in expected.items():
        np.testing.assert_array_equal(weights.rows(name).floats(), values)


def test_gptq_modules_follow_the_first_regex_that_matches(tmp_path: Path) -> None:
    usual = gptq(4, 64)
    dynamic = {
        r"-:.*\.attn\.": {"bits": 8},
        r"+:.*\.1\..*down$": {"bits": 8, "group_size": 32},
        r".*\.mlp\.": {"bits": 3, "sym": True},
        r"^lm": {"group_size": -1, "desc_act": True, "checkpoint_format": "gptq_v2"},
    }
    modules = {
        ATTENTION: None,
        DOWN: gptq(8, 32),
        UP: gptq(3, 64, sym=True),
        HEAD: gptq(4, -1, version=2),
        "other": usual,
        "not.lm_head": usual,  # a regex must match the beginning of a name
    }
    check(tmp_path, {**usual.settings, "dynamic": dynamic}, modules)


@pytest.mark.parametrize("method", ["auto-round", "intel/auto-round"])
@pytest.mark.parametrize("packing", ["auto_round:auto_gptq", "auto_round"])
def test_auto_round_of_gptq_names_modules_or_parts(
    method: str, packing: str, tmp_path: Path
) -> None:
    version = 2 if packing == "auto_round" else 1
    usual = gptq(4, 64, version=version)
    settings = {
        **auto_round(usual, packing).settings,
        "quant_method": method,
        "extra_config": {
            ATTENTION: {"bits": 16, "data_type": "float"},
            HEAD: {"bits": 8, "group_size": 32, "sym": True, "data_type": "int"},
            "mlp.(up|gate)": {"bits": 2},
            "^other$": {"group_size": 32},
        },
    }
    modules = {
        ATTENTION: None,
        HEAD: gptq(8, 32, sym=True, version=version),
        UP: gptq(2, 64, version=version),
        DOWN: usual,
        "other": gptq(4, 32, version=version),
        "m.other": usual,
    }
    check(tmp_path, settings, modules)


def test_auto_round_of_awq(tmp_path: Path) -> None:
    usual = awq(64)
    settings = {
        **auto_round(usual, "auto_round:auto_awq").settings,
        "extra_config": {DOWN: {"sym": True, "group_size": 32}, HEAD: {"bits": 16}},
    }
    check(tmp_path, settings, {UP: usual, DOWN: awq(32, zero_point=False), HEAD: None})


def test_symmetric_auto_round_has_no_zero_points(tmp_path: Path) -> None:
    """The settings are symmetric unless they say otherwise, and are in order."""
    made = auto_round(gptq(4, 64, sym=True), "auto_round:auto_gptq")
    del made.settings["sym"]
    rows, values = read(tmp_path, made)
    assert rows.type == "I4By64"
    np.testing.assert_array_equal(rows.floats(), values)


def test_old_auto_round_files_call_the_packing_backend(tmp_path: Path) -> None:
    made = auto_round(gptq(4, 64, version=2), "auto_round:exllamav2")
    made.settings["backend"] = made.settings.pop("packing_format")
    rows, values = read(tmp_path, made)
    np.testing.assert_array_equal(rows.floats(), values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"packing_format": "auto_round:llm_compressor"}, "'auto_round:llm_compressor'"),
        ({"data_type": "mx_fp"}, "data_type 'mx_fp'"),
        ({"bits": 16}, "below 16"),
        ({"bits": 5}, "of 5 bits"),
        ({"extra_config": {"a": {"bits": 6}}}, "of 6 bits"),
        ({"extra_config": {"a": 4}}, "must be an object"),
        ({"extra_config": {"(a": {}}}, r"regex '\.\*\(\?:\(a\)'"),
        ({"extra_config": {f"a{i}$": {} for i in range(MAX_PATTERNS + 1)}}, "4,097 regexes"),
    ],
)
def test_settings_that_are_not_supported_are_refused(change: dict[str, Any], message: str) -> None:
    settings = auto_round(gptq(4, 64), "auto_round:auto_gptq").settings
    with pytest.raises(CheckpointError, match=message):
        formats_for(Values({**settings, **change}))


def test_auto_round_of_awq_has_four_bits() -> None:
    settings = auto_round(awq(64), "auto_round:auto_awq").settings
    with pytest.raises(CheckpointError, match="of 8 bits"):
        formats_for(Values({**settings, "extra_config": {"a": {"bits": 8}}}))
