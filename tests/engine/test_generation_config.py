"""Defaults of sampling parameters: the model's own, none, or those of another place; changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.core.config import ConfigError
from octavo.loader.errors import CheckpointError
from octavo.model_facts import GenerationDefaults
from octavo.models.generation import chosen_defaults
from octavo.options.engine import EngineArguments, read_arguments
from tests.damage.models import write_directory

OVERRIDE = "override_generation_config"
OWN = GenerationDefaults(0, (1,), 0.7, 0.9, 20, 0.05, 1.1, 64)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_directory(tmp_path_factory.mktemp("generation") / "m")


def defaults(model: Path, **options: Any) -> GenerationDefaults:
    with LLM(model, num_threads=1, kv_cache_memory_bytes=1 << 20, **options) as llm:
        return llm._model.facts.generation


def test_a_models_own_defaults_apply_unless_they_are_left_out(model: Path) -> None:
    assert defaults(model) == defaults(model, generation_config="auto") == OWN
    assert defaults(model, generation_config="vllm") == GenerationDefaults(0, (1,))


def test_single_values_replace_the_models(model: Path) -> None:
    override = {"temperature": 0.5, "max_new_tokens": 7, "top_p": None}
    changed = GenerationDefaults(0, (1,), 0.5, 0.9, 20, 0.05, 1.1, 7)
    assert defaults(model, override_generation_config=override) == changed
    text = json.dumps(override)
    assert defaults(model, override_generation_config=text) == changed
    alone = defaults(model, generation_config="vllm", override_generation_config={"top_k": 3})
    assert alone == GenerationDefaults(0, (1,), top_k=3)


def test_requests_without_parameters_get_them(model: Path) -> None:
    options: dict[str, Any] = {
        "generation_config": "vllm",
        "override_generation_config": '{"top_k": 3}',
    }
    with LLM(model, num_threads=1, kv_cache_memory_bytes=1 << 20, **options) as llm:
        assert llm.get_default_sampling_params() == SamplingParams(top_k=3)


def test_another_place_may_have_them(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "generation_config.json"
    path.write_text('{"temperature": 0.2, "eos_token_id": 5}')
    expected = GenerationDefaults(0, (5,), 0.2)
    for place in (path, tmp_path, str(tmp_path)):
        assert defaults(model, generation_config=place) == expected
    path.write_text('{"temperature": 0.2}')
    assert defaults(model, generation_config=tmp_path).eos_ids == (1,)
    path.write_text('{"temperature": -0.2}')
    with pytest.raises(CheckpointError, match=f"{path}: config: temperature must be from 0 to"):
        chosen_defaults(OWN, str(tmp_path), {})
    with pytest.raises(CheckpointError, match="nowhere: cannot be read: No such file"):
        chosen_defaults(OWN, str(tmp_path / "nowhere"), {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({OVERRIDE: "{"}, "'{' is not JSON; write an object"),
        ({OVERRIDE: "[1]"}, "it is a list; it must be an object"),
        ({OVERRIDE: 3}, "it is a int; it must be an object"),
        ({OVERRIDE: {"temprature": 1}}, "no field 'temprature'; did you mean temperature"),
        ({OVERRIDE: {"stop": "x"}}, "no field 'stop'; .*temperature"),
        ({OVERRIDE: {"top_p": 7}}, "top_p=7"),
        ({OVERRIDE: {"max_new_tokens": 0}}, "max_new_tokens=0 must be at least 1"),
        ({"generation_config": 3}, "generation_config=3 must be a name or a path"),
        ({"generation_config": "/none"}, "generation_config='/none': there is no file /none; give"),
        ({"generation_config": "/proc"}, "there is no file /proc/generation_config.json; give"),
    ],
)
def test_what_no_request_could_use_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_arguments("m", options)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("half", "float16"),
        ("float16", "float16"),
        ("torch.float16", "float16"),
        ("float", "float32"),
        ("bfloat16", "bfloat16"),
        ("auto", "auto"),
    ],
)
def test_vllms_names_of_types_are_accepted(name: str, meant: str) -> None:
    expected: dict[str, Any] = {"model": "m", "dtype": meant}
    assert read_arguments("m", {"dtype": name}) == EngineArguments(**expected)
