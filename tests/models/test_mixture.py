"""Mixtral, Qwen2-MoE, Qwen3-MoE and OLMoE against the reference implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import (
    AutoModelForCausalLM,
    MixtralConfig,
    OlmoeConfig,
    PretrainedConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)

from octavo.models.config_reader import Config, ConfigurationError
from octavo.models.mixture import Mixture
from tests.models import small
from tests.models.compare import compare, load

SMALL: dict[str, Any] = {**small.SMALL, "intermediate_size": 40, "num_experts_per_tok": 2}
QWEN: dict[str, Any] = {**SMALL, "num_experts": 6, "moe_intermediate_size": 24}
HEADS: dict[str, Any] = {"head_dim": 16}
CASES: dict[str, PretrainedConfig] = {
    "mixtral": MixtralConfig(**SMALL, num_local_experts=4),
    "mixtral, window, tied": MixtralConfig(
        **SMALL, num_local_experts=4, sliding_window=9, tie_word_embeddings=True
    ),
    "qwen2": Qwen2MoeConfig(**QWEN, shared_expert_intermediate_size=40),
    "qwen2, dense layers between, normalised": Qwen2MoeConfig(
        **QWEN, shared_expert_intermediate_size=40, decoder_sparse_step=2, norm_topk_prob=True
    ),
    "qwen3": Qwen3MoeConfig(**QWEN, norm_topk_prob=True, **HEADS),
    "qwen3, a dense layer, windows": Qwen3MoeConfig(
        **QWEN, mlp_only_layers=[1], use_sliding_window=True, sliding_window=9, **HEADS
    ),
    "olmoe": OlmoeConfig(**SMALL, num_experts=6),
    "olmoe, normalised, biases": OlmoeConfig(
        **SMALL, num_experts=6, norm_topk_prob=True, attention_bias=True
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_and_text_match_the_reference(name: str, tmp_path: Path) -> None:
    """Logits agree within fp32 rounding, the text is equal, and chunks have the same bits."""
    compare(CASES[name], tmp_path)


@pytest.mark.parametrize("name", ["mixtral", "qwen3"])
def test_experts_saved_as_one_tensor_are_the_same(name: str, tmp_path: Path) -> None:
    """A checkpoint may store all experts' matrices as one tensor."""
    model = AutoModelForCausalLM.from_config(CASES[name])  # type: ignore[no-untyped-call]
    model.save_pretrained(tmp_path / "published")
    model.save_pretrained(tmp_path / "fused", save_original_format=False)
    published, fused = load(tmp_path / "published"), load(tmp_path / "fused")
    names = (tmp_path / "fused" / "model.safetensors").read_bytes()
    assert b"experts.gate_up_proj" in names
    assert np.array_equal(published.logits([1, 2, 3]), fused.logits([1, 2, 3]))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "mixtral",
            {"num_experts_per_tok": 5},
            "num_experts_per_tok must be at most 4, the number of experts, is 5",
        ),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv"),
        ("qwen2", {"num_experts": 0}, "num_experts must be above 0"),
    ],
)
def test_unsupported_options_are_refused(name: str, change: dict[str, Any], message: str) -> None:
    values = json.loads(CASES[name].to_json_string(use_diff=False))
    values["architectures"] = {
        "mixtral": ["MixtralForCausalLM"],
        "olmoe": ["OlmoeForCausalLM"],
        "qwen2": ["Qwen2MoeForCausalLM"],
    }[name]
    with pytest.raises(ConfigurationError, match=message):
        Mixture.read(Config({**values, **change}))
