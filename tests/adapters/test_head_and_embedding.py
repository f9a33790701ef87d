"""Adapters of the head and the embedding, and those that have matrices in place of the model's."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.adapters.module_choice import Names
from octavo.adapters.pairs import Limits
from octavo.adapters.read import PEFT_FILE, AdapterReader
from octavo.backends.adapter_weights import AdapterWeights
from octavo.layers import Model
from octavo.loader.errors import CheckpointError, TensorMismatchError, UnsupportedFormatError
from octavo.loader.gguf.reader import open_gguf
from tests.adapters.made import Arrays, read_adapter, write_adapter
from tests.loader.make_files import F32, STRING, f32_tensor, write_gguf
from tests.models.made_up import make_model

NUM_DAMAGED = 40
PEFT = "base_model.model."
HEAD, EMBED = f"{PEFT}lm_head.", f"{PEFT}model.embed_tokens."
EMBED_A, EMBED_B = f"{EMBED}lora_embedding_A", f"{EMBED}lora_embedding_B"
NORM, QUERY = f"{PEFT}model.norm.weight", f"{PEFT}model.layers.1.self_attn.q_proj.weight"
WHOLES = Limits(16, wholes=True)


@pytest.fixture(scope="module")
def model() -> Model:
    return make_model("LlamaForCausalLM")


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32) / 8


def pairs_of(model: Model) -> Arrays:
    """Make pairs of the head and the embedding, as PEFT names them."""
    words, hidden = model.embed.vocabulary, model.embed.hidden
    return {
        f"{HEAD}lora_A.weight": numbers(4, hidden),
        f"{HEAD}lora_B.weight": numbers(words, 4),
        EMBED_A: numbers(4, words),
        EMBED_B: numbers(hidden, 4),
    }


def wholes_of(model: Model) -> Arrays:
    """Make a head and an embedding, as PEFT names those that it saves."""
    size = model.embed.vocabulary, model.embed.hidden
    return {f"{HEAD}weight": numbers(*size), f"{EMBED}weight": -numbers(*size)}


def equal(one: AdapterWeights, other: AdapterWeights) -> bool:
    return one.pairs.keys() == other.pairs.keys() and all(
        len(pairs) == len(other.pairs[path]) == 1
        and np.array_equal(pairs[0].down, other.pairs[path][0].down)  # type: ignore[union-attr]
        and np.array_equal(pairs[0].up, other.pairs[path][0].up)  # type: ignore[union-attr]
        and pairs[0].scale == other.pairs[path][0].scale  # type: ignore[union-attr]
        for path, pairs in one.pairs.items()
    )


def test_the_gguf_form_of_a_head_and_an_embedding_is_the_same_adapter(
    model: Model, tmp_path: Path
) -> None:
    """The first matrix of an embedding is turned there, so that its rows are looked up."""
    arrays = pairs_of(model)
    expected = read_adapter(model, write_adapter(tmp_path, arrays, target_modules=None))
    assert expected.paths == ("head", "embed")
    tensors = [
        f32_tensor("output.weight.lora_a", arrays[f"{HEAD}lora_A.weight"]),
        f32_tensor("output.weight.lora_b", arrays[f"{HEAD}lora_B.weight"]),
        f32_tensor("token_embd.weight.lora_a", np.ascontiguousarray(arrays[EMBED_A].T)),
        f32_tensor("token_embd.weight.lora_b", arrays[EMBED_B]),
    ]
    pairs: list[tuple[str, int, Any]] = [("general.type", STRING, "adapter")]
    pairs += [("general.architecture", STRING, "llama"), ("adapter.type", STRING, "lora")]
    pairs += [("adapter.lora.alpha", F32, 8.0)]
    reader = AdapterReader(model, Limits(16))
    found = reader.read(open_gguf(write_gguf(tmp_path / "adapter.gguf", pairs, tensors)), b"")
    assert equal(found, expected)
    tensors[2] = f32_tensor("token_embd.weight.lora_a", arrays[EMBED_A])
    path = write_gguf(tmp_path / "turned.gguf", pairs, tensors)
    with pytest.raises(TensorMismatchError, match="shape") as caught:
        reader.read(open_gguf(path), b"")
    assert caught.value.tensor == "token_embd.weight.lora_a"


@pytest.mark.parametrize("old", [False, True])
def test_saved_matrices_are_read_by_either_name(model: Model, tmp_path: Path, *, old: bool) -> None:
    arrays = wholes_of(model)
    rename = "modules_to_save.weight" if old else "weight"
    named = {name.removesuffix("weight") + rename: array for name, array in arrays.items()}
    write_adapter(tmp_path, named, modules_to_save=["embed_tokens", "lm_head"])
    found = read_adapter(model, tmp_path, WHOLES)
    assert not found.pairs
    for path, array in zip(("head", "embed"), arrays.values(), strict=True):
        np.testing.assert_array_equal(found.wholes[path].rows.floats(), array)


def test_the_head_of_a_tied_model_follows_its_embedding_if_it_shall(tmp_path: Path) -> None:
    model = make_model("LlamaForCausalLM", tie_word_embeddings=True)
    arrays = {name: array for name, array in pairs_of(model).items() if "embedding" in name}
    settings: dict[str, Any] = {"target_modules": ["embed_tokens"]}
    alone = read_adapter(model, write_adapter(tmp_path, arrays, **settings))
    assert alone.paths == ("embed",)
    settings["ensure_weight_tying"] = True
    both = read_adapter(model, write_adapter(tmp_path, arrays, **settings))
    (of_table,), (of_head,) = both.pairs["embed"], both.pairs["head"]
    assert of_table is not None
    assert of_head is not None
    np.testing.assert_array_equal(of_head.up @ of_head.down, (of_table.up @ of_table.down).T)
    saved = {name: array for name, array in wholes_of(model).items() if "embed" in name}
    settings = {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}
    wholes = read_adapter(model, write_adapter(tmp_path, saved, **settings), WHOLES).wholes
    assert wholes.keys() == {"head", "embed"}


def test_an_engine_without_memory_for_matrices_refuses_them_by_name(
    model: Model, tmp_path: Path
) -> None:
    write_adapter(tmp_path, wholes_of(model))
    with pytest.raises(UnsupportedFormatError, match="max_saved_loras") as caught:
        read_adapter(model, tmp_path)
    assert caught.value.tensor in wholes_of(model)


def test_what_an_engine_does_not_name_is_refused(model: Model, tmp_path: Path) -> None:
    for arrays in (wholes_of(model), pairs_of(model)):
        limits = Limits(16, Names(["q_proj"], "lora_target_modules"), wholes=True)
        write_adapter(tmp_path, arrays)
        with pytest.raises(TensorMismatchError, match="lora_target_modules"):
            read_adapter(model, tmp_path, limits)


@pytest.mark.parametrize("module", ["lm_head", "embed_tokens", "model.embed_tokens"])
def test_a_file_without_a_matrix_that_its_settings_name_is_incomplete(
    module: str, model: Model, tmp_path: Path
) -> None:
    write_adapter(tmp_path, pairs_of(model), modules_to_save=[module, "classifier"])
    with pytest.raises(TensorMismatchError, match="incomplete") as caught:
        read_adapter(model, tmp_path, WHOLES)
    assert module in str(caught.value)


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "a head's shape": ({f"{HEAD}weight": np.ones((97, 32), np.float32)}, f"{HEAD}weight", "shape"),
    "an embedding's": ({f"{EMBED}weight": np.ones((32, 96), np.float32)}, f"{EMBED}weight", "shap"),
    "integers": ({f"{HEAD}weight": np.ones((96, 32), np.int32)}, f"{HEAD}weight", "I32"),
    "NaN": ({f"{HEAD}weight": np.full((96, 32), np.nan, np.float32)}, f"{HEAD}weight", "NaN"),
    "a bias of none": (
        {**dict.fromkeys([f"{HEAD}weight"], np.ones((96, 32), np.float32)),
         f"{HEAD}bias": np.ones(96, np.float32)},
        f"{HEAD}bias", "no bias",
    ),
    "a copy of a projection": (
        {f"{QUERY.removesuffix('weight')}lora_A.weight": np.ones((4, 32), np.float32),
         f"{QUERY.removesuffix('weight')}base_layer.weight": np.ones((32, 32), np.float32)},
        f"{QUERY.removesuffix('weight')}base_layer.weight", "no such tensor",
    ),
    "a norm": ({NORM: np.ones(32, np.float32)}, NORM, "norms"),
    "a projection": ({QUERY: np.ones((32, 32), np.float32)}, QUERY, "only the head"),
    "another layer": (
        {f"{PEFT}score.weight": np.ones((2, 32), np.float32)}, f"{PEFT}score.weight", "score",
    ),
    "half a pair": ({EMBED_A: None}, EMBED_B, "incomplete"),
    "a pair's shape": ({EMBED_A: np.ones((96, 4), np.float32)}, EMBED_A, "shape"),
    "a pair's numbers": ({EMBED_B: np.full((32, 4), np.inf, np.float32)}, EMBED_B, "finite"),
    "another kind of pair": (
        {f"{EMBED}lora_A.weight": np.ones((4, 96), np.float32), EMBED_A: None, EMBED_B: None},
        f"{EMBED}lora_A.weight", "no such tensor",
    ),
    "a head looked up": (
        {f"{HEAD}lora_embedding_A": np.ones((4, 32), np.float32)},
        f"{HEAD}lora_embedding_A", "no such tensor",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_matrix_that_is_wrong_is_refused_by_its_name(
    case: str, model: Model, tmp_path: Path
) -> None:
    more, name, why = WRONG[case]
    arrays = {**pairs_of(model), **more}
    if name.endswith(("lm_head.weight", "embed_tokens.weight", "lm_head.bias")):
        arrays = more
    write_adapter(tmp_path, {key: each for key, each in arrays.items() if each is not None})
    with pytest.raises(CheckpointError, match=why) as caught:
        read_adapter(model, tmp_path, WHOLES)
    assert caught.value.tensor == name


def test_a_matrix_beside_a_pair_of_the_same_module_is_refused(model: Model, tmp_path: Path) -> None:
    for name in wholes_of(model):
        write_adapter(tmp_path, {**pairs_of(model), name: wholes_of(model)[name]})
        with pytest.raises(TensorMismatchError, match="whole layer beside"):
            read_adapter(model, tmp_path, WHOLES)


def test_two_matrices_for_one_place_are_refused(model: Model, tmp_path: Path) -> None:
    arrays = wholes_of(model)
    again = f"{PEFT}embed_tokens.weight"  # as in a base that was saved without its head
    write_adapter(tmp_path, arrays | {again: arrays[f"{EMBED}weight"]})
    with pytest.raises(TensorMismatchError, match="another matrix") as caught:
        read_adapter(model, tmp_path, WHOLES)
    assert "embed_tokens" in str(caught.value.tensor)


def test_magnitudes_of_an_embedding_are_refused_by_name(model: Model, tmp_path: Path) -> None:
    arrays = pairs_of(model) | {f"{EMBED}lora_magnitude_vector": np.ones(32, np.float32)}
    arrays |= {f"{HEAD}lora_magnitude_vector": np.ones(96, np.float32)}
    write_adapter(tmp_path, arrays, use_dora=True)
    with pytest.raises(UnsupportedFormatError, match="DoRA of embeddings") as caught:
        read_adapter(model, tmp_path)
    assert EMBED in str(caught.value.tensor)


@pytest.mark.parametrize("seed", range(NUM_DAMAGED))
def test_damaged_matrices_are_read_or_refused_in_one_line(
    seed: int, model: Model, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    write_adapter(tmp_path, pairs_of(model) if seed % 2 else wholes_of(model))
    content = bytearray((tmp_path / PEFT_FILE).read_bytes())
    for _ in range(chance.randrange(1, 4)):
        content[int(len(content) * chance.random() ** 3)] = chance.randrange(256)
    cut = chance.choice([len(content)] * 4 + [len(content) // 2])
    (tmp_path / PEFT_FILE).write_bytes(content[:cut])
    why = ""
    try:
        read_adapter(model, tmp_path, WHOLES)
    except CheckpointError as error:
        why = str(error)
    assert "\n" not in why
