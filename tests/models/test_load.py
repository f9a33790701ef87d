"""Opening a model: the metadata beside the tensors, and the messages for wrong files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.loader import CheckpointError, resolve
from octavo.model_facts import GenerationDefaults
from octavo.models.config_reader import Config
from octavo.models.gguf.architectures import ARCHITECTURES
from octavo.models.gguf.gguf_weights import GgufWeights
from octavo.models.gguf.keys import shortest
from octavo.models.gguf.to_config import read_config
from octavo.models.load import OpenedModel, open_model
from octavo.models.registry import family_of
from tests.loader.make_files import (
    ARRAY,
    F32,
    I32,
    STRING,
    U32,
    GGUFTensor,
    f32_tensor,
    gguf_bytes,
    write_gguf,
    write_safetensors,
)
from tests.models.made_up import MadeUpWeights
from tests.models.rewrite import values_of

PAIRS: dict[str, tuple[int, Any]] = {
    "general.architecture": (STRING, "llama"),
    "llama.context_length": (U32, 32),
    "llama.embedding_length": (U32, 8),
    "llama.block_count": (U32, 1),
    "llama.feed_forward_length": (U32, 12),
    "llama.attention.head_count": (U32, 2),
    "llama.attention.head_count_kv": (U32, 1),
    "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
    "tokenizer.ggml.bos_token_id": (U32, 1),
    "tokenizer.ggml.eos_token_id": (U32, 2),
}
SHAPES: dict[str, tuple[int, ...]] = {
    "token_embd.weight": (16, 8),
    "output_norm.weight": (8,),
    "blk.0.attn_norm.weight": (8,),
    "blk.0.attn_q.weight": (8, 8),
    "blk.0.attn_k.weight": (4, 8),
    "blk.0.attn_v.weight": (4, 8),
    "blk.0.attn_output.weight": (8, 8),
    "blk.0.ffn_norm.weight": (8,),
    "blk.0.ffn_gate.weight": (12, 8),
    "blk.0.ffn_up.weight": (12, 8),
    "blk.0.ffn_down.weight": (8, 12),
}


def tiny(
    path: Path,
    pairs: dict[str, tuple[int, Any] | None] | None = None,
    shapes: dict[str, tuple[int, ...] | None] | None = None,
) -> Path:
    """Write a small Llama as GGUF; metadata and tensors that are None are omitted."""
    said = {key: value for key, value in {**PAIRS, **(pairs or {})}.items() if value is not None}
    kept = {
        name: shape for name, shape in {**SHAPES, **(shapes or {})}.items() if shape is not None
    }
    tensors = [f32_tensor(name, np.ones(shape, np.float32)) for name, shape in kept.items()]
    return write_gguf(path / "m.gguf", [(key, *value) for key, value in said.items()], tensors)


def opened(path: Path) -> OpenedModel:
    return open_model(resolve(str(path)))


def test_a_correct_file_opens(tmp_path: Path) -> None:
    found = opened(tiny(tmp_path))
    assert found.architecture == "LlamaForCausalLM"
    assert found.spec.tied
    assert (found.spec.hidden, found.spec.head_dim, found.spec.eps) == (8, 4, 1e-5)
    assert found.generation == GenerationDefaults(bos_id=1, eos_ids=(2,))


def test_end_tokens_and_sampling_defaults_are_read(tmp_path: Path) -> None:
    more: dict[str, tuple[int, Any] | None] = {
        "tokenizer.ggml.eot_token_id": (U32, 5),
        "tokenizer.ggml.eom_token_id": (U32, 2),
        "general.sampling.temp": (F32, 0.5),
        "general.sampling.top_k": (U32, 20),
    }
    found = open_model(resolve(str(tiny(tmp_path, more))))
    assert found.generation == GenerationDefaults(1, (2, 5), temperature=0.5, top_k=20)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ({"general.architecture": (STRING, "lama")}, "'lama' is not supported.*llama"),
        ({"general.architecture": (STRING, "bert")}, "'bert' is not supported"),
        ({"llama.block_count": None}, "no key 'llama.block_count'"),
        ({"llama.block_count": (U32, 4_000_000)}, "4,000,000 blocks and only 11 tensors"),
        ({"llama.attention.head_count_kv": (ARRAY, (U32, [1, 2]))}, "differs between blocks"),
        ({"llama.attention.key_length": (U32, 4), "llama.attention.value_length": (U32, 2)}, "siz"),
        (
            {"llama.rope.scaling.type": (STRING, "wild")},
            "scaling.type 'wild' is not supported",
        ),
        (
            {"llama.embedding_length": (U32, 9)},
            "embedding_length' 9 does not divide into 2",
        ),
        ({"llama.attention.head_count": (STRING, "2")}, "must be an integer"),
        ({"llama.expert_count": (U32, 4)}, "metadata 'llama.expert_used_count' is missing"),
        ({"llama.attention.layer_norm_rms_epsilon": (F32, float("nan"))}, "finite number"),
    ],
)
def test_wrong_metadata(tmp_path: Path, pairs: dict[str, Any], message: str) -> None:
    path = tiny(tmp_path, pairs)
    with pytest.raises(CheckpointError, match=message) as caught:
        opened(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"blk.0.attn_q.weight": None}, "1 of the 11 tensors.*missing: 'blk.0.attn_q.weight'"),
        ({"blk.0.attn_k.weight": (5, 8)}, r"blk.0.attn_k.weight.*\[5, 8\].*\[4, 8\]: 160 bytes"),
        ({"blk.0.attn_what.weight": (5, 8)}, "does not use: 'blk.0.attn_what.weight'"),
        ({"blk.1.attn_q.weight": (8, 8)}, "does not use: 'blk.1.attn_q.weight'"),
        ({"token_embd.weight": None}, "no tensor 'token_embd.weight'"),
        ({"blk.0.ffn_gate_exps.weight": (7,)}, "must have an axis"),
        ({"blk.0.ffn_gate_exps.weight": (1 << 17, 0, 0)}, "must have an axis of at most 65,536"),
    ],
)
def test_wrong_tensors(tmp_path: Path, shapes: dict[str, Any], message: str) -> None:
    path = tiny(tmp_path, shapes=shapes)
    with pytest.raises((CheckpointError), match=message) as caught:
        opened(path)
    assert str(path) in str(caught.value)


def test_the_first_gemma_2_files_need_defaults(tmp_path: Path) -> None:
    """The files contain neither caps nor window; the reference reader also adds them."""
    pairs = {key.replace("llama.", "gemma2."): value for key, value in PAIRS.items()}
    pairs["general.architecture"] = (STRING, "gemma2")
    norms = {f"blk.0.post_{name}_norm.weight": (8,) for name in ("attention", "ffw")}
    tensors = [f32_tensor(name, np.ones(of, np.float32)) for name, of in (SHAPES | norms).items()]
    for more, expected in (
        ({}, (50.0, 30.0, (4096,))),
        ({"final_logit_softcapping": (F32, 20.0)}, (50.0, 20.0, (4096,))),
        ({"attention.sliding_window": (U32, 8)}, (50.0, 30.0, (8,))),
    ):
        said = pairs | {f"gemma2.{key}": value for key, value in more.items()}
        write_gguf(tmp_path / "m.gguf", [(key, *value) for key, value in said.items()], tensors)
        spec = opened(tmp_path / "m.gguf").spec
        assert (spec.attention_cap, spec.logit_cap, spec.windows) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention.head_count_kv": (ARRAY, (I32, [0, 1, 2]))}, "blocks of 1 and 2 KV heads"),
        ({"attention.head_count_kv": (ARRAY, (I32, [0, 1]))}, "2 blocks, but there are 3"),
        ({"attention.sliding_window": (U32, 8)}, "windows of this architecture"),
        ({"shortconv.l_cache": (U32, 1)}, "'lfm2.shortconv.l_cache' must be at least 2"),
    ],
)
def test_wrong_metadata_of_convolutions(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    """The number of KV heads says which blocks convolve."""
    usual = {key.replace("llama.", "lfm2."): value for key, value in PAIRS.items()}
    usual |= {
        "general.architecture": (STRING, "lfm2"),
        "lfm2.block_count": (U32, 3),
        "lfm2.shortconv.l_cache": (U32, 3),
    }
    pairs = usual | {f"lfm2.{key}": value for key, value in change.items()}
    said = [(key, *value) for key, value in pairs.items() if value is not None]
    tensors = [f32_tensor(name, np.ones(shape, np.float32)) for name, shape in SHAPES.items()]
    path = write_gguf(tmp_path / "m.gguf", said, tensors)
    with pytest.raises(CheckpointError, match=message):
        opened(path)


def test_any_missing_key_is_an_error_of_the_file_or_harmless(tmp_path: Path) -> None:
    """No missing key raises an unexpected exception."""
    tensors = [f32_tensor("token_embd.weight", np.ones((16, 8), np.float32))]
    for architecture in ARCHITECTURES:
        for missing in (None, *PAIRS):
            said = [
                (key.replace("llama.", f"{architecture}."), *value)
                for key, value in PAIRS.items()
                if key not in (missing, "general.architecture")
            ]
            named = ("general.architecture", STRING, architecture)
            write_gguf(tmp_path / "m.gguf", [named, *said], tensors)
            with pytest.raises(CheckpointError):
                opened(tmp_path / "m.gguf")


def test_a_list_of_equal_numbers_is_one_number(tmp_path: Path) -> None:
    path = tiny(tmp_path, {"llama.attention.head_count_kv": (ARRAY, (U32, [1, 1, 1]))})
    assert opened(path).spec.kv_heads == 1


def test_experts_stored_one_by_one(tmp_path: Path) -> None:
    """Older files contain experts under numbered names instead of stacked."""
    experts = {
        f"blk.0.ffn_{part}.{number}.weight": shape
        for part, shape in {"gate": (12, 8), "up": (12, 8), "down": (8, 12)}.items()
        for number in range(2)
    }
    pairs: dict[str, Any] = {"llama.expert_count": (U32, 2), "llama.expert_used_count": (U32, 1)}
    checkpoint = resolve(str(tiny(tmp_path, pairs, {**experts}))).open()
    config = read_config(checkpoint)
    assert config["architectures"] == ["MixtralForCausalLM"]
    shapes = GgufWeights(checkpoint, config).shapes()
    assert shapes["model.layers.0.block_sparse_moe.experts.1.w2.weight"] == (8, 12)


def test_quantised_experts_are_read_one_by_one(tmp_path: Path) -> None:
    """MXFP4 blocks of one expert decode to that expert's part of the whole."""
    generator = np.random.default_rng(0)
    blocks = generator.integers(0, 255, (3, 2, 2, 17), dtype=np.uint8)
    blocks[..., 0] = generator.integers(120, 130, blocks.shape[:-1])
    tensors = [
        f32_tensor("token_embd.weight", np.ones((16, 8), np.float32)),
        GGUFTensor("blk.0.ffn_up_exps.weight", (64, 2, 3), 39, blocks.tobytes()),
    ]
    pairs = [(key.replace("llama", "qwen3moe"), *value) for key, value in PAIRS.items()]
    pairs[0] = ("general.architecture", STRING, "qwen3moe")
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes(pairs, tensors))
    checkpoint = resolve(str(path)).open()
    weights = GgufWeights(checkpoint, read_config(checkpoint))
    whole = checkpoint.read_float32("blk.0.ffn_up_exps.weight")
    assert len(np.unique(whole)) > 10
    for number in range(3):
        one = values_of(weights, f"model.layers.0.mlp.experts.{number}.up_proj.weight")
        assert np.array_equal(one, whole[number])


def test_float32_numbers_become_short_decimals() -> None:
    assert shortest(float(np.float32(1e-5))) == 1e-5
    assert shortest(float(np.float32(0.22))) == 0.22
    assert shortest(0.1) == 0.1  # not a float32, but stored as 64 bits
    assert shortest(1e300) == 1e300
    assert np.isnan(shortest(float("nan")))


# directories


def directory(path: Path, config: object, generation: object = None) -> Path:
    model = family_of("LlamaForCausalLM")(family_of("LlamaForCausalLM").read(Config(CONFIG)))
    write_safetensors(path / "model.safetensors", MadeUpWeights(model).tensors)
    (path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation))
    return path


CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 16,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def test_generation_config_takes_precedence(tmp_path: Path) -> None:
    said = {"eos_token_id": [7, 2], "temperature": 0.6, "top_k": 40, "do_sample": True}
    found = open_model(resolve(str(directory(tmp_path, CONFIG, said))))
    assert found.generation == GenerationDefaults(1, (7, 2), temperature=0.6, top_k=40)


def test_a_recommended_length_is_read(tmp_path: Path) -> None:
    for said, expected in ((32, 32), (0, None), (None, None)):
        found = open_model(resolve(str(directory(tmp_path, CONFIG, {"max_new_tokens": said}))))
        assert found.generation.max_new_tokens == expected


def test_top_k_without_limit_has_two_spellings(tmp_path: Path) -> None:
    for said in (0, -1):
        found = open_model(resolve(str(directory(tmp_path, CONFIG, {"top_k": said}))))
        assert found.generation.top_k == 0


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    path = directory(tmp_path, CONFIG)
    assert open_model(resolve(str(path)), max_len=5).generation == GenerationDefaults(1, (2,))
    write_safetensors(path / "model.safetensors", {"x": np.ones(1, np.float32)})
    with pytest.raises(CheckpointError, match="tensors the model needs are missing"):
        opened(path)


@pytest.mark.parametrize(
    ("config", "generation", "message"),
    [
        ({**CONFIG, "architectures": ["LamaForCausalLM"]}, None, "nearest.*LlamaForCausalLM"),
        ({**CONFIG, "architectures": None}, None, "architectures is missing"),
        ({**CONFIG, "architectures": []}, None, "architectures"),
        ({**CONFIG, "hidden_size": "8"}, None, "hidden_size must be a whole number"),
        ({**CONFIG, "eos_token_id": "</s>"}, None, "eos_token_id must be a token id"),
        (CONFIG, {"eos_token_id": [2, None]}, "eos_token_id must be a token id"),
        (CONFIG, {"temperature": "hot"}, "temperature must be a finite number"),
        (CONFIG, {"top_k": -2}, "top_k must be a whole number"),
        ({**CONFIG, "quantization_config": {"quant_method": "vptq"}}, None, "quantised by 'vptq'"),
        (CONFIG, [], "not a JSON object"),
        ([], None, "not a JSON object"),
    ],
)
def test_wrong_directories(
    tmp_path: Path, config: object, generation: object, message: str
) -> None:
    source = resolve(str(directory(tmp_path, config, generation)))
    with pytest.raises(CheckpointError, match=message) as caught:
        open_model(source)
    assert str(tmp_path) in str(caught.value)


def test_an_unreadable_config_json_is_reported(tmp_path: Path) -> None:
    source = resolve(str(directory(tmp_path, CONFIG)))
    (tmp_path / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config.json.*cannot be read"):
        open_model(source)
