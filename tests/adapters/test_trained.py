"""What PEFT trains loads as it is, and says what PEFT's own model says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import (
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
)

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
TIED = LlamaConfig(**SIZES, tie_word_embeddings=True)
# Embeddings times a factor, and logits with a cap.
GEMMA = Gemma2Config(
    **SIZES, head_dim=8, query_pre_attn_scalar=8, final_logit_softcapping=3.0, sliding_window=8
)

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
    "the head": (LLAMA, {"target_modules": ["lm_head", "q_proj"], "use_dora": True}),
    "the head of a tied model": (TIED, {"target_modules": ["lm_head", "v_proj"]}),
    "the embedding": (LLAMA, {"target_modules": ["embed_tokens", "o_proj"]}),
    "the embedding and the head, with a factor and a cap": (
        GEMMA,
        {"target_modules": ["embed_tokens", "lm_head", "down_proj"], "use_rslora": True},
    ),
    "an embedding that stays tied": (
        TIED,
        {"target_modules": ["embed_tokens"], "ensure_weight_tying": True},
    ),
    "a saved head": (LLAMA, {"target_modules": ALL, "modules_to_save": ["lm_head"]}),
    "a saved head behind a cap": (
        GEMMA,
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    ),
    "a saved embedding of a tied model": (
        TIED,
        {"target_modules": ["k_proj"], "modules_to_save": ["embed_tokens"]},
    ),
    "both saved": (
        GPT2,
        {
            "target_modules": ["c_attn"],
            "fan_in_fan_out": True,
            "modules_to_save": ["wte", "lm_head"],
        },
    ),
    "a saved embedding that stays tied": (
        TIED,
        {
            "target_modules": ["q_proj"],
            "modules_to_save": ["embed_tokens"],
            "ensure_weight_tying": True,
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_adapter_says_what_peft_says(case: str, tmp_path: Path) -> None:
    """Half its factor has equal results in both backends."""
    config, settings = CASES[case]
    trained = train(config, tmp_path, **settings)
    found = [check(trained, new()) for new in BACKENDS.values()]
    close = {"rtol": 0, "atol": 3e-5 * np.abs(found[0]).max()}
    np.testing.assert_allclose(found[1], found[0], **close)
    assert np.abs(found[0] - trained.adapted).max() > 0.01
    assert np.abs(found[0] - trained.plain).max() > 0.01
