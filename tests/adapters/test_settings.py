"""The settings of an adapter mean what they mean in PEFT; what is not supported is refused."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from octavo.adapters.module_choice import ByModule, Layers, Names
from octavo.adapters.pairs import Limits
from octavo.adapters.read import SETTINGS_FILE
from octavo.layers import Model
from octavo.loader.errors import CheckpointError, TensorMismatchError, UnsupportedFormatError
from tests.adapters.made import (
    Arrays,
    make_arrays,
    modules_of,
    read_adapter,
    write_adapter,
)
from tests.models.made_up import make_model

NAMES = [
    f"model.layers.{layer}.{name}"
    for layer in (0, 1, 10, 11)
    for name in ("self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj", "mlp.experts.1.up_proj")
]
PATTERNS = [
    "q_proj",
    "layers.1.self_attn.q_proj",
    "self_attn.q_proj",
    "proj",
    r"^model\.layers\.1\..*",
    r".*k_proj",
    r"(q|k)_proj",
    r"layers\.(0|11)\.mlp\..*",
    r"experts\.\d+\.up_proj",
]


def pattern_of(patterns: list[str], name: str) -> str | None:
    """Return the pattern that applies to a module, as PEFT 0.21.2 finds it (get_pattern_key)."""
    found = (each for each in patterns if re.match(rf"(.*\.)?({each})$", name))
    return next(found, None)


@pytest.mark.parametrize("first", range(len(PATTERNS)))
def test_the_first_pattern_that_matches_applies(first: int) -> None:
    patterns = PATTERNS[first:] + PATTERNS[:first]
    values = ByModule({each: each for each in patterns}, "rank_pattern")
    for name in NAMES:
        assert values.find(name, "") == (pattern_of(patterns, name) or "")


@pytest.mark.parametrize("pattern", [None, "layers", ["h", "layers"], r"(block|layer)s?", "h", []])
@pytest.mark.parametrize("numbers", [1, [0, 10], [], [3]])
def test_layers_are_chosen_by_the_first_number(pattern: Any, numbers: Any) -> None:
    """PEFT 0.21.2 finds it so in check_target_module_exists."""

    def number_in(name: str) -> int | None:
        listed = [pattern] if isinstance(pattern, str) else pattern or []
        if not listed:
            found = re.match(r".*?\.[^.]*\.(?P<index>\d+)\.", name)
        else:
            tries = (re.match(rf"(?:^|.*?\.){each}\.(?P<index>\d+)\.", name) for each in listed)
            found = next(filter(None, tries), None)
        return None if found is None else int(found["index"])

    chosen = [numbers] if isinstance(numbers, int) else numbers
    layers = Layers(numbers, pattern)
    for name in NAMES:
        assert layers.match(name) == (not chosen or number_in(name) in chosen)


def test_names_are_whole_words_at_the_end_or_a_regex_of_all() -> None:
    listed = Names(["q_proj", "mlp.down_proj"], "target_modules")
    assert [each for each in NAMES if listed.match(each)] == [
        each for each in NAMES if each.endswith((".q_proj", ".mlp.down_proj"))
    ]
    assert not listed.match("model.xq_proj")
    regex = r".*layers\.1\..*(q|k)_proj"
    whole = Names(regex, "target_modules")
    assert [whole.match(each) for each in NAMES] == [
        bool(re.fullmatch(regex, each)) for each in NAMES
    ]


@pytest.fixture(scope="module")
def model() -> Model:
    return make_model("LlamaForCausalLM")


def arrays_of(model: Model, *ends: str, **more: Any) -> Arrays:
    modules = [each for each in modules_of(model) if not ends or each.name.endswith(ends)]
    return make_arrays(modules, **more)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"lora_alpha": 6}, (1.5, 1.5)),
        ({"lora_alpha": 6, "use_rslora": True}, (3.0, 3.0)),
        ({"lora_alpha": -0.5}, (-0.125, -0.125)),
        ({"alpha_pattern": {"layers.1.self_attn.q_proj": 2.5}}, (2.0, 0.625)),
        ({"alpha_pattern": {r"layers\.[1-9]\..*": 12}, "use_rslora": True}, (4.0, 6.0)),
        ({"r": 2, "rank_pattern": {"q_proj": 4}}, (2.0, 2.0)),
    ],
)
def test_the_scale_of_each_pair_follows_from_the_settings(
    settings: dict[str, Any], expected: tuple[float, float], model: Model, tmp_path: Path
) -> None:
    write_adapter(tmp_path, arrays_of(model, "q_proj"), **settings)
    pairs = read_adapter(model, tmp_path).pairs
    scales = [pairs[f"blocks.{layer}.attn.qkv"][0] for layer in (0, 1)]
    assert [pair.scale for pair in scales if pair is not None] == list(expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_numbers_are_views_of_the_file_in_its_own_type(
    dtype: Any, model: Model, tmp_path: Path
) -> None:
    arrays = arrays_of(model, dtype=dtype)
    write_adapter(tmp_path, arrays)
    pair = read_adapter(model, tmp_path).pairs["blocks.1.attn.qkv"][2]
    assert pair is not None
    assert pair.down.dtype == dtype
    assert not pair.up.flags.owndata
    stored = arrays["base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"]
    assert (pair.up == stored).all()


REFUSED: list[dict[str, Any]] = [
    {"bias": "some"},
    {"modules_to_save": "lm_head"},
    {"trainable_token_indices": [1]},
    {"target_parameters": ["experts.gate_up_proj"]},
    {"layer_replication": [[0, 1]]},
    {"alora_invocation_tokens": [1]},
    {"use_qalora": True},
    {"kasa_config": {}, "use_bdlora": {"nblocks": 1}},
    {"peft_type": "ADALORA"},
    {"init_lora_weights": "pissa_niter_4"},
    {"init_lora_weights": "olora"},
    {"r": 0},
    {"r": "4"},
    {"lora_alpha": None},
    {"rank_pattern": {"q_proj": 1 << 20}},
    {"alpha_pattern": {"(": 1}},
    {"rank_pattern": {"": 1}},
    {"target_modules": [f"a{number}" for number in range(5000)]},
    {"alpha_pattern": {f"a{number}": 1 for number in range(5000)}},
    {"alpha_pattern": {f"a{number}.*": 1 for number in range(300)}},
]


@pytest.mark.parametrize("settings", REFUSED, ids=lambda each: f"{next(iter(each))}")
def test_settings_that_are_not_supported_are_refused_by_name(
    settings: dict[str, Any], model: Model, tmp_path: Path
) -> None:
    write_adapter(tmp_path, arrays_of(model), **settings)
    with pytest.raises(UnsupportedFormatError) as caught:
        read_adapter(model, tmp_path)
    message = str(caught.value)
    assert SETTINGS_FILE in message
    assert any(key in message for key in settings)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"r": 4, "r": 5}', b'{"r": NaN}', b"\xff"])
def test_settings_that_are_none_are_refused(text: bytes, model: Model, tmp_path: Path) -> None:
    write_adapter(tmp_path, arrays_of(model))
    (tmp_path / SETTINGS_FILE).write_bytes(text)
    with pytest.raises(CheckpointError):
        read_adapter(model, tmp_path)


@pytest.mark.parametrize("key", ["target_modules", "exclude_modules"])
def test_a_regex_of_modules_that_cannot_be_read_leaves_the_tensors_to_decide(
    key: str, model: Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_adapter(tmp_path, arrays_of(model), **{key: r"(\w)\1_proj"})
    with caplog.at_level(logging.WARNING, "octavo"):
        assert len(read_adapter(model, tmp_path).pairs) == 8
    assert key in caplog.text


def test_fields_that_are_not_known_are_named_in_the_log(
    model: Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_adapter(tmp_path, arrays_of(model), new_field=1, empty_field=None)
    with caplog.at_level(logging.WARNING, "octavo"):
        read_adapter(model, tmp_path)
    assert "new_field" in caplog.text
    assert "empty_field" not in caplog.text


Q = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"
UP = Q.replace("lora_A", "lora_B")


def _with(name: str, array: np.ndarray) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.update({name: array})


def _damaged(value: float, dtype: Any) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        arrays[UP] = arrays[UP].astype(dtype)
        arrays[UP][3, 1] = value

    return change


WRONG: dict[str, tuple[Callable[[Arrays], None], str]] = {
    "another base": (_with(Q, np.ones((4, 33), np.float32)), Q),
    "another rank": (_with(Q, np.ones((5, 32), np.float32)), Q),
    "more rows": (_with(UP, np.ones((33, 4), np.float32)), UP),
    "one axis": (_with(Q, np.ones(4, np.float32)), Q),
    "no up": (lambda arrays: void(arrays.pop(UP)), Q),
    "no down": (lambda arrays: void(arrays.pop(Q)), UP),
    "integers": (_with(Q, np.ones((4, 32), np.int32)), Q),
    "doubles": (_with(Q, np.ones((4, 32))), Q),
    "NaN": (_damaged(math.nan, np.float32), UP),
    "infinity": (_damaged(math.inf, np.float16), UP),
    "-infinity": (_damaged(-math.inf, ml_dtypes.bfloat16), UP),
    "-NaN": (_damaged(-math.nan, np.float16), UP),
    "infinity of 32 bits": (_damaged(math.inf, np.float32), UP),
    "-infinity of 32 bits": (_damaged(-math.inf, np.float32), UP),
    "NaN of bfloat16": (_damaged(math.nan, ml_dtypes.bfloat16), UP),
    **{
        name: (_with(name, np.ones((4, 32), np.float32)), name)
        for name in (
            "base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight",
            "base_model.model.model.layers.1.self_attn.r_proj.lora_A.weight",
            "base_model.model.lm_head.lora_A.weight",
            "base_model.model.lm_head.modules_to_save.weight",
            "base_model.model.model.embed_tokens.lora_embedding_A",
            "base_model.model.model.layers.1.self_attn.q_proj.lora_magnitude_vector",
            "base_model.model.model.layers.1.self_attn.q_proj.lora_B.bias",
            "base_model.model.model.layers.1.self_attn.q_proj.lora_A.other.weight",
            "base_model.model.model.layers.1.input_layernorm.lora_A.weight",
            "model.layers.1.self_attn.q_proj.lora_A.weight",
            "anything",
            "",
        )
    },
}


def void(_: object) -> None:
    """Take a value away."""


@pytest.mark.parametrize("case", WRONG)
def test_a_tensor_that_is_wrong_is_refused_by_its_name(
    case: str, model: Model, tmp_path: Path
) -> None:
    change, name = WRONG[case]
    arrays = arrays_of(model)
    change(arrays)
    write_adapter(tmp_path, arrays)
    with pytest.raises(CheckpointError) as caught:
        read_adapter(model, tmp_path)
    assert caught.value.tensor == name


B = "base_model.model.model.layers.1.self_attn.q_proj."


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"use_dora": True}, "lora_magnitude_vector"),
        ({"lora_bias": True}, "lora_B.bias"),
        ({}, "lora_magnitude_vector"),
        ({}, "lora_B.bias"),
        ({}, "base_layer.bias"),
    ],
)
def test_numbers_beside_pairs_are_those_that_the_settings_say(
    settings: dict[str, Any], name: str, model: Model, tmp_path: Path
) -> None:
    arrays = arrays_of(model, "q_proj")
    if not settings:
        arrays[B + name] = np.ones(32, np.float32)
    write_adapter(tmp_path, arrays, **settings)
    with pytest.raises(TensorMismatchError, match="settings do not belong to it"):
        read_adapter(model, tmp_path)


@pytest.mark.parametrize("name", ["base_layer.bias", "lora_B.bias", "lora_magnitude_vector"])
@pytest.mark.parametrize("size", [31, 33])
def test_numbers_beside_pairs_are_one_for_each_output(
    name: str, size: int, model: Model, tmp_path: Path
) -> None:
    arrays = arrays_of(model, "q_proj")
    for key in [key for key in arrays if key.endswith("lora_B.weight")]:
        arrays[key.replace("lora_B.weight", name)] = np.ones(32, np.float32)
    arrays[B + name] = np.ones(size, np.float32)
    settings: dict[str, dict[str, Any]] = {
        "base_layer.bias": {"bias": "lora_only"},
        "lora_B.bias": {"lora_bias": True},
        "lora_magnitude_vector": {"use_dora": True},
    }
    write_adapter(tmp_path, arrays, **settings[name])
    with pytest.raises(TensorMismatchError) as caught:
        read_adapter(model, tmp_path)
    assert caught.value.tensor == B + name


def test_a_bias_in_place_of_none_is_refused(tmp_path: Path) -> None:
    model = make_model("MistralForCausalLM")
    name = B.replace("q_proj", "o_proj") + "base_layer.bias"
    write_adapter(
        tmp_path, {**arrays_of(model, "o_proj"), name: np.ones(32, np.float32)}, bias="lora_only"
    )
    with pytest.raises(TensorMismatchError, match="no bias") as caught:
        read_adapter(model, tmp_path)
    assert caught.value.tensor == name


def test_experts_are_refused_by_name(tmp_path: Path) -> None:
    mixture = make_model("Qwen2MoeForCausalLM")
    name = "base_model.model.model.layers.1.mlp.experts.2.gate_proj.lora_A.weight"
    write_adapter(tmp_path, {name: np.ones((4, 32), np.float32)})
    with pytest.raises(UnsupportedFormatError, match="experts") as caught:
        read_adapter(mixture, tmp_path)
    assert caught.value.tensor == name


@pytest.mark.parametrize(
    "settings",
    [
        {"target_modules": ["k_proj"]},
        {"target_modules": r".*\.k_proj"},
        {"exclude_modules": ["layers.1.self_attn.q_proj"]},
        {"target_modules": ["q_proj"], "layers_to_transform": [0]},
    ],
)
def test_tensors_that_the_settings_do_not_choose_are_refused(
    settings: dict[str, Any], model: Model, tmp_path: Path
) -> None:
    write_adapter(tmp_path, arrays_of(model, "q_proj"), **settings)
    with pytest.raises(TensorMismatchError, match="settings do not belong to it") as caught:
        read_adapter(model, tmp_path)
    assert "q_proj" in str(caught.value.tensor)


def test_the_largest_rank_and_the_modules_are_bounded(model: Model, tmp_path: Path) -> None:
    write_adapter(tmp_path, arrays_of(model, "q_proj", "o_proj"))
    with pytest.raises(TensorMismatchError, match="max_lora_rank"):
        read_adapter(model, tmp_path, Limits(3))
    modules = Names(["q_proj"], "lora_target_modules")
    with pytest.raises(TensorMismatchError, match="lora_target_modules") as caught:
        read_adapter(model, tmp_path, Limits(4, modules))
    assert "o_proj" in str(caught.value.tensor)
    both = Names(["q_proj", "o_proj"], "lora_target_modules")
    assert read_adapter(model, tmp_path, Limits(4, both)).rank == 4


def test_an_adapter_without_tensors_is_refused(model: Model, tmp_path: Path) -> None:
    write_adapter(tmp_path, {})
    with pytest.raises(TensorMismatchError):
        read_adapter(model, tmp_path)


def test_a_name_of_the_adapter_may_stand_in_the_tensors_names(model: Model, tmp_path: Path) -> None:
    """Trainers that write the tensors themselves leave it there."""
    arrays = {
        name.replace(".weight", ".default.weight"): array
        for name, array in arrays_of(model).items()
    }
    write_adapter(tmp_path, arrays)
    assert len(read_adapter(model, tmp_path).pairs) == 8


def test_a_regex_that_would_take_for_ever_is_quick(model: Model, tmp_path: Path) -> None:
    write_adapter(tmp_path, arrays_of(model), alpha_pattern={r"(\w+)+x": 1, r"(a*)*b": 2})
    assert len(read_adapter(model, tmp_path).pairs) == 8
    assert json.loads((tmp_path / SETTINGS_FILE).read_text())["peft_version"] == "0.21.2"
