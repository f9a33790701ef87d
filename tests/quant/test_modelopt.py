"""Matrices of ModelOpt have the values of the description."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.loader import resolve
from octavo.loader.errors import CheckpointError, TensorMismatchError
from octavo.loader.safetensors import open_safetensors
from octavo.models.checkpoint_weights import CheckpointWeights
from octavo.models.load import open_model
from octavo.models.values import Values
from octavo.quant.methods.modelopt import read_modelopt
from octavo.quant.registry import formats_for
from tests.loader.make_files import write_safetensors
from tests.quant.made_compressed import Quantise, fp8, nvfp4
from tests.quant.made_up import FORMATS, write_pair

NVFP4 = nvfp4(is_modelopt=True)
MIXED = {
    "quant_method": "modelopt",
    "quant_algo": "MIXED_PRECISION",
    "quantized_layers": {
        "layers.0": {"quant_algo": "FP8"},
        "layers.1": {"quant_algo": "NVFP4", "group_size": 16},
    },
    "exclude_modules": ["lm_head", "*.gate"],
}
CASES: dict[str, tuple[dict[str, Any], Quantise, str]] = {
    "NVFP4": (NVFP4[0], NVFP4[1], "NVFP4By16"),
    "NVFP4, mixed": (MIXED, NVFP4[1], "NVFP4By16"),
    "NVFP4, as its own file has it": ({"quantization": NVFP4[0]}, NVFP4[1], "NVFP4By16"),
    "FP8": ({"quant_algo": "FP8"}, fp8("tensor")[1], "F8By32"),
    "FP8, mixed": (MIXED, fp8("tensor")[1], "F8By32"),
    "FP8, rows": ({"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, fp8("channel")[1], "F8By32"),
}


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_description(name: str, tmp_path: Path) -> None:
    settings, quantise, kind = CASES[name]
    tensors, values = quantise((40, 256), np.random.default_rng(0))
    arrays = {f"m.{each}": array for each, array in tensors.items()}
    unused = {"m.input_scale": np.ones((), np.float32), "k_proj.k_scale": np.ones(1, np.float32)}
    write_safetensors(tmp_path / "model.safetensors", arrays | unused)
    found = read_modelopt(Values(settings))
    weights = CheckpointWeights(open_safetensors(tmp_path / "model.safetensors"), [found])
    weights.check({"m.weight": (40, 256)}, ())
    rows = weights.rows("m.weight")
    assert rows.type == weights.row_type("m.weight") == kind
    np.testing.assert_array_equal(rows.floats(), values)


@pytest.mark.parametrize("part", ["weight_scale", "weight_scale_2"])
def test_every_missing_scale_is_one_error(part: str, tmp_path: Path) -> None:
    tensors, _ = NVFP4[1]((40, 256), np.random.default_rng(0))
    arrays = {f"m.{each}": array for each, array in tensors.items() if each != part}
    write_safetensors(tmp_path / "model.safetensors", arrays)
    with pytest.raises(TensorMismatchError, match=rf"m\.weight.*needs 'm\.{part}'"):
        list(read_modelopt(Values(NVFP4[0])).find(open_safetensors(tmp_path / "model.safetensors")))


def test_excluded_modules_are_stored_as_they_are(tmp_path: Path) -> None:
    tensors, _ = fp8("tensor")[1]((40, 256), np.random.default_rng(0))
    modules = ("lm_head", "layers.1.gate", "layers.1.gate_proj", "my_lm_head")
    arrays = {f"{each}.{part}": array for part, array in tensors.items() for each in modules}
    write_safetensors(tmp_path / "model.safetensors", arrays)
    found = read_modelopt(Values(MIXED)).find(open_safetensors(tmp_path / "model.safetensors"))
    assert {each.name for each in found} == {"layers.1.gate_proj.weight", "my_lm_head.weight"}


def test_its_own_file_is_read_beside_a_config_without_settings(tmp_path: Path) -> None:
    write_pair(tmp_path, FORMATS["NVFP4 of ModelOpt"], hidden_size=64, intermediate_size=128)
    config = tmp_path / "stored" / "config.json"
    values = json.loads(config.read_text())
    own = {"producer": {"name": "modelopt"}, "quantization": values.pop("quantization_config")}
    config.write_text(json.dumps(values))
    (tmp_path / "stored" / "hf_quant_config.json").write_text(json.dumps(own))
    opened = open_model(resolve(str(tmp_path / "stored")))
    assert opened.quantization == "modelopt"
    assert opened.weights.row_type("model.layers.0.mlp.up_proj.weight") == "NVFP4By16"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "quant_algo = null"),
        ({"quant_algo": "W4A16_AWQ"}, "quant_algo = 'W4A16_AWQ'.*FP8.*NVFP4.*MIXED_PRECISION"),
        ({"quant_algo": ["FP8"]}, "quant_algo"),
        ({"quant_algo": "NVFP4", "group_size": 32}, "group_size = '32'"),
        ({"quant_algo": "MIXED_PRECISION"}, "quantized_layers = null"),
        (
            {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"m": {"quant_algo": "INT4"}}},
            r"quantized_layers\.m\.quant_algo = 'INT4'",
        ),
        ({"quant_algo": "FP8", "exclude_modules": [1]}, "exclude_modules must be a list"),
    ],
)
def test_settings_that_are_not_supported_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        formats_for(Values({"quant_method": "modelopt", **settings}))
