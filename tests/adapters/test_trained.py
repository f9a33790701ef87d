"""What PEFT trains loads as it is, and says what PEFT's own model says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import GPT2Config, LlamaConfig, Phi3Config, PretrainedConfig, Qwen2Config

from tests.adapters.trained import check, train
from tests.backends.both import BACKENDS

SIZES: dict[str, Any] = {
    "vocab_size": 75,
    "hidden_size": 40,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
BIASED: dict[str, Any] = {**SIZES, "attention_bias": True, "mlp_bias": True}
LLAMA = LlamaConfig(**SIZES)
GPT2 = GPT2Config(vocab_size=75, n_embd=40, n_layer=2, n_head=5, n_positions=64)
ALL = "all-linear"

CASES: dict[str, tuple[PretrainedConfig, dict[str, Any]]] = {
    "pairs": (LLAMA, {"target_modules": ALL}),
    "biases of pairs": (LlamaConfig(**BIASED), {"target_modules": ALL, "lora_bias": True}),
    "biases of pairs where the model has none": (
        LLAMA,
        {"target_modules": ["q_proj", "up_proj", "down_proj"], "lora_bias": True},
    ),
    "trained biases of some projections": (
        Qwen2Config(**SIZES),
        {"target_modules": ["v_proj", "o_proj"], "bias": "lora_only"},
    ),
    "all trained biases": (
        LlamaConfig(**BIASED),
        {"target_modules": ["k_proj", "gate_proj"], "bias": "all", "lora_bias": True},
    ),
    "magnitudes": (LLAMA, {"target_modules": ALL, "use_dora": True}),
    "magnitudes of some parts, and biases": (
        LlamaConfig(**BIASED),
        {"target_modules": ["q_proj", "v_proj", "up_proj"], "use_dora": True, "bias": "all"},
    ),
    "magnitudes of fused projections": (
        Phi3Config(**SIZES),
        {"target_modules": ALL, "use_dora": True, "use_rslora": True},
    ),
    "magnitudes of transposed weights": (
        GPT2,
        {"target_modules": ["c_attn", "c_fc"], "use_dora": True, "fan_in_fan_out": True},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_adapter_says_what_peft_says(case: str, tmp_path: Path) -> None:
    config, settings = CASES[case]
    trained = train(config, tmp_path, **settings)
    for new in BACKENDS.values():
        check(trained, new())
