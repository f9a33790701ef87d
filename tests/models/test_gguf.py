"""A GGUF file is the checkpoint that it was made from: same tensors, same logits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import (
    AutoModelForCausalLM,
    Cohere2Config,
    CohereConfig,
    DeepseekV2Config,
    DeepseekV3Config,
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    Glm4Config,
    GPT2Config,
    GPTNeoXConfig,
    GptOssConfig,
    GraniteConfig,
    Lfm2Config,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    OlmoeConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
    StableLmConfig,
)

from octavo.backends.base import LogitsBackend
from octavo.backends.torch.backend import TorchBackend
from octavo.loader import resolve
from octavo.models.build import bind
from octavo.models.gguf.gguf_weights import GgufWeights
from octavo.models.gguf.to_config import read_config
from octavo.models.kv_layout import place_layers
from octavo.models.load import open_model
from octavo.models.registry import FAMILIES
from tests.models import small
from tests.models.compare import PROMPT_LENGTH, Runner, exact_native
from tests.models.convert_gguf import ARCHITECTURES, convert
from tests.models.rewrite import assert_same, values_of, write_safetensors
from tests.models.small import LLAMA3, YARN

SMALL: dict[str, Any] = {**small.SMALL, "num_attention_heads": 4}
WITHOUT_KV = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}
NARROW: dict[str, Any] = {"head_dim": 12}
NEOX_TURNS: dict[str, Any] = {"rotary_pct": 0.5}
HALF_TURNS: dict[str, Any] = {"partial_rotary_factor": 0.5}
SPARSE: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + n / 16 for n in range(6)],
    "long_factor": [2.0 + n / 8 for n in range(6)],
    "original_max_position_embeddings": 16,
}
EVEN: dict[str, Any] = {**SMALL, "num_attention_heads": 6}  # heads of 8 numbers
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
LATENT: dict[str, Any] = {
    **WITHOUT_KV,
    "kv_lora_rank": 32,
    "q_lora_rank": None,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 24,
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}
SHARPENED: dict[str, Any] = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}
CASES: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SMALL),
    "llama, biases, tied": LlamaConfig(
        **SMALL, attention_bias=True, mlp_bias=True, tie_word_embeddings=True
    ),
    "llama, wide heads": LlamaConfig(**SMALL, head_dim=32),
    "llama 3 rope": LlamaConfig(**SMALL, rope_parameters=LLAMA3),
    "llama, linear rope": LlamaConfig(**SMALL, rope_parameters=LINEAR),
    "mistral": MistralConfig(**SMALL, sliding_window=None),
    "mixtral": MixtralConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2),
    "smollm3": SmolLM3Config(**SMALL),
    "granite": GraniteConfig(
        **SMALL,
        embedding_multiplier=3.0,
        residual_multiplier=0.4,
        logits_scaling=2.0,
        attention_multiplier=0.1,
    ),
    "qwen2": Qwen2Config(**SMALL),
    "qwen2, yarn": Qwen2Config(**SMALL, rope_parameters=YARN),
    "qwen2moe": Qwen2MoeConfig(
        **SMALL, **SPARSE, moe_intermediate_size=16, shared_expert_intermediate_size=24
    ),
    "qwen3": Qwen3Config(**SMALL, head_dim=16),
    "qwen3moe": Qwen3MoeConfig(
        **SMALL, **SPARSE, **NARROW, moe_intermediate_size=16, norm_topk_prob=True
    ),
    "olmoe": OlmoeConfig(**SMALL, **SPARSE),
    "olmo2": Olmo2Config(**SMALL),
    "gemma": GemmaConfig(**SMALL, head_dim=12),
    "gemma2": Gemma2Config(**SMALL, head_dim=12, query_pre_attn_scalar=12, sliding_window=8),
    "gemma3": Gemma3TextConfig(**SMALL, head_dim=12, query_pre_attn_scalar=12, sliding_window=8),
    "phi3": Phi3Config(**SMALL, sliding_window=8),
    "phi3, longrope": Phi3Config(
        **SMALL, sliding_window=None, rope_parameters=LONGROPE, original_max_position_embeddings=16
    ),
    "command-r": CohereConfig(**SMALL, use_qk_norm=True),
    "cohere2": Cohere2Config(**SMALL, sliding_window=8),
    "glm4": Glm4Config(**SMALL, head_dim=12),
    "gpt2": GPT2Config(
        vocab_size=97,
        n_embd=48,
        n_layer=3,
        n_head=4,
        n_positions=64,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "gptneox": GPTNeoXConfig(**WITHOUT_KV, **NEOX_TURNS, use_parallel_residual=False),
    "stablelm": StableLmConfig(**SMALL, use_qkv_bias=True, **HALF_TURNS),
    "stablelm, parallel": StableLmConfig(
        **SMALL, qk_layernorm=True, use_parallel_residual=True, **HALF_TURNS
    ),
    "falcon": FalconConfig(
        vocab_size=97, hidden_size=48, num_hidden_layers=3, num_attention_heads=4
    ),
    "falcon, new": FalconConfig(
        vocab_size=97,
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_kv_heads=2,
        new_decoder_architecture=True,
    ),
    "deepseek v2": DeepseekV2Config(**LATENT),
    "deepseek v3": DeepseekV3Config(
        **{**LATENT, "q_lora_rank": 24}, n_group=2, topk_group=1, rope_parameters=SHARPENED
    ),
    "lfm2": Lfm2Config(**EVEN, full_attn_idxs=[1], block_auto_adjust_ff_dim=False),
    "lfm2, biases, its own head": Lfm2Config(
        **EVEN,
        full_attn_idxs=[0, 2],
        block_auto_adjust_ff_dim=False,
        conv_bias=True,
        conv_L_cache=4,
        tie_word_embeddings=False,
    ),
    "gpt-oss": GptOssConfig(
        **SMALL, head_dim=12, num_local_experts=4, num_experts_per_tok=2, rope_parameters=YARN
    ),
}
# What these keep is not keys and values of heads, and their tensors are taken apart.
NATIVE_TOO = ("deepseek", "lfm2")
# Keys that may differ between the two configs of one model without a difference in meaning.
UNSAID = {
    "architectures",
    "rope_parameters",
    "tie_word_embeddings",
    "partial_rotary_factor",
    "sliding_window",
    "head_dim",
    "num_kv_heads",  # in Falcon's old decoder the number of heads, even if they share KV
    "num_key_value_heads",
}


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A random checkpoint, and the GGUF file made from it."""
    torch.manual_seed(0)
    directory = tmp_path_factory.mktemp("checkpoint")
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(CASES[request.param], dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            # With the precision of bfloat16, like real checkpoints: adding one loses nothing.
            noise = (torch.randn_like(parameter) * 0.05).bfloat16().float()
            parameter.copy_((parameter + noise).bfloat16().float())
    model.save_pretrained(directory)
    return request.param, directory, convert(directory, directory / "model.gguf")


def test_same_tensors(pair: tuple[str, Path, Path]) -> None:
    """The file yields every original tensor, to the bit, and no other."""
    _, directory, path = pair
    expected = load_file(directory / "model.safetensors")
    checkpoint = resolve(str(path)).open()
    weights = GgufWeights(checkpoint, read_config(checkpoint))
    if any("k_b_proj" in name for name in weights.shapes()):
        expected = dict(_with_keys_apart(expected))
    expected = {name: value for name, value in expected.items() if name in weights.shapes()} | {
        name: value for name, value in expected.items() if name != "lm_head.weight"
    }
    weights.check({name: array.shape for name, array in expected.items()}, ())
    for name, array in expected.items():
        ours = values_of(weights, name)
        assert ours.dtype == np.float32
        assert ours.shape == weights.shapes()[name] == array.shape
        assert np.array_equal(ours.view(np.uint32), array.view(np.uint32)), name


def _with_keys_apart(tensors: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Divide matrices of keys and values; those of keys are kept as they are used."""
    heads, still = LATENT["num_attention_heads"], LATENT["qk_nope_head_dim"]
    for name, array in tensors.items():
        if "kv_b_proj" not in name:
            yield name, array
            continue
        by_head = array.reshape(heads, -1, array.shape[1])
        yield name.replace("kv_b", "k_b"), by_head[:, :still].swapaxes(1, 2).copy()
        yield name.replace("kv_b", "v_b"), by_head[:, still:].copy()


def test_same_configuration(pair: tuple[str, Path, Path]) -> None:
    """The config from the metadata agrees with the original config.json."""
    _, directory, path = pair
    original = json.loads((directory / "config.json").read_text())
    ours = read_config(resolve(str(path)).open())
    assert ours["vocab_size"] == original["vocab_size"]
    shared = [key for key in ours if original.get(key) is not None and key not in UNSAID]
    assert len(shared) > 6
    assert {key: ours[key] for key in shared} == {key: original[key] for key in shared}
    if "head_dim" in ours:
        assert ours["head_dim"] == original["head_dim"]
    assert ours["tie_word_embeddings"] == original.get("tie_word_embeddings", True)
    assert ARCHITECTURES[ours["architectures"][0]] == ARCHITECTURES[original["architectures"][0]]


def test_same_logits(pair: tuple[str, Path, Path]) -> None:
    """The logits of both are equal, to the bit."""
    name, directory, path = pair
    architecture = json.loads((directory / "config.json").read_text())["architectures"][0]
    if architecture not in FAMILIES:
        pytest.skip(f"{architecture} is not supported")
    prompt = np.random.default_rng(1).integers(0, 97, PROMPT_LENGTH).tolist()
    whole, from_gguf = (_logits(str(place), prompt) for place in (directory, path))
    if name == "llama 3 rope":  # its frequencies are stored as float32 divisors
        np.testing.assert_allclose(from_gguf, whole, rtol=0, atol=1e-5 * np.abs(whole).max())
    else:
        assert np.array_equal(from_gguf, whole)
    if name.startswith(NATIVE_TOO):
        natively = [_logits(str(place), prompt, exact_native()) for place in (directory, path)]
        assert np.array_equal(*natively)
        np.testing.assert_allclose(natively[0], whole, rtol=0, atol=2e-5 * np.abs(whole).max())


def _logits(name: str, prompt: list[int], backend: LogitsBackend | None = None) -> Any:
    source = resolve(name)
    if not name.endswith(".gguf"):  # the directory contains both
        source = resolve(str(source.directory / "model.safetensors"))
    opened = open_model(source)
    layout = place_layers(opened.model)
    backend = backend or TorchBackend()
    bind(opened.model, backend, opened.weights)
    return Runner(opened.model, backend, layout).logits(prompt)


def test_the_file_written_as_safetensors_is_the_same_model(
    pair: tuple[str, Path, Path], tmp_path: Path
) -> None:
    """The two files yield the same bits, and the reference reads the written one."""
    name, directory, path = pair
    opened = open_model(resolve(str(path)))
    write_safetensors(opened, tmp_path)
    assert_same(opened, open_model(resolve(str(tmp_path))))
    original, written = (load_file(place / "model.safetensors") for place in (directory, tmp_path))
    for tensor in original.keys() & written.keys():
        before, after = (part[tensor].view(np.uint32) for part in (original, written))
        assert np.array_equal(before, after), tensor
    prompt = np.random.default_rng(1).integers(0, 97, PROMPT_LENGTH).tolist()
    logits = _logits(str(tmp_path), prompt)
    assert np.array_equal(logits, _logits(str(path), prompt))
    if opened.architecture != "LlamaForCausalLM" or "rope" in name:
        return  # the config is complete for us, but not for the reference
    assert original.keys() == written.keys()
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.no_grad():
        expected = reference(torch.tensor([prompt])).logits[0].numpy()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


# The architectures of which the reference reads GGUF files with all their tensors.
READ_BY_THE_REFERENCE = (
    "llama",
    "llama, biases, tied",
    "llama, wide heads",
    "qwen2",
    "qwen3",
    "qwen3moe",
    "gemma2",
    "gemma3",
    "phi3",
    "gpt2",
    "stablelm",
    "falcon",
)


def test_the_reference_reads_the_same_tensors(pair: tuple[str, Path, Path]) -> None:
    """The converted file is one that other readers accept."""
    name, directory, path = pair
    if name not in READ_BY_THE_REFERENCE:
        pytest.skip("the reference does not read these files, or not all of their tensors")
    original = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    read = AutoModelForCausalLM.from_pretrained(
        directory, gguf_file=path.name, config=CASES[name], dtype=torch.float32
    )
    found = dict(read.named_parameters())
    for parameter, values in original.named_parameters():
        assert torch.equal(found[parameter], values), parameter
