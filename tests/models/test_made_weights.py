"""Weights that are made: in the shapes of published models, and good enough to run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo import LLM, SamplingParams
from octavo.core.config import ConfigError
from octavo.engine.drafting.drafter import layout_of, open_with_drafter
from octavo.loader import resolve
from octavo.loader.errors import CheckpointError
from octavo.models.footprint import num_parameters
from octavo.models.load import open_model
from octavo.options.engine import read_arguments
from octavo.resolve import make_bill
from tests.api.tiny import make_model
from tests.models.published_shapes import PUBLISHED

DUMMY: dict[str, Any] = {"load_format": "dummy"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_has_the_published_number_of_weights(
    tmp_path: Path, name: str
) -> None:
    config, count = PUBLISHED[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked = read_arguments(str(tmp_path), {**DUMMY, "backend": "native"})
    _, opened = open_with_drafter(asked)
    assert num_parameters(opened) == count
    bill = make_bill(asked, opened, layout_of(opened))
    assert 2 * count < bill.weights_bytes < 2.02 * count  # vectors take four bytes a number


def test_made_weights_are_those_of_the_configuration_and_no_row_is_another(tmp_path: Path) -> None:
    config = {**PUBLISHED["Llama-3.1-8B"][0], "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    opened = open_model(resolve(str(tmp_path), has_weights=False))
    again = open_model(resolve(str(tmp_path), has_weights=False))
    name = "model.layers.0.self_attn.k_proj.weight"
    rows = opened.weights.rows(name)
    values = rows.floats()
    assert (rows.type, values.shape) == ("BF16", (1024, 4096))
    assert np.array_equal(values, again.weights.rows(name).floats())
    assert len(np.unique(values, axis=0)) == 1024
    outputs = values @ np.random.default_rng(1).standard_normal(4096, np.float32)
    assert 0.8 < outputs.std() < 1.2
    assert np.array_equal(opened.weights.rows("model.norm.weight").floats(), np.ones((1, 4096)))


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_an_engine_runs_over_made_weights(tmp_path: Path, backend: str) -> None:
    if backend == "torch":
        pytest.importorskip("torch")
    directory = make_model(tmp_path)
    (directory / "model.safetensors").unlink()
    sampling = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    found = []
    for _ in range(2):
        with LLM(str(directory), backend=backend, num_gpu_blocks_override=40, **DUMMY) as llm:
            outputs = llm.generate([{"prompt_token_ids": [5, 6, 7]}], sampling, use_tqdm=False)
            found.append([*outputs[0].outputs[0].token_ids])
    assert found[0] == found[1]
    assert len(found[0]) == 8


def test_weights_are_made_for_a_directory_alone(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is no directory, and weights are made for"):
        open_with_drafter(read_arguments("smollm2", DUMMY))
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        open_with_drafter(read_arguments(str(tmp_path), DUMMY))
    assert read_arguments("m", {"load_format": "safetensors"}).load_format == "auto"
    with pytest.raises(ConfigError, match="load_format='tensorizer'"):
        read_arguments("m", {"load_format": "tensorizer"})
