"""The Llama family against the reference implementation."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import (
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from tests.models.compare import compare
from tests.models.small import LLAMA3, SMALL, YARN

CASES: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SMALL),
    "llama, biases, tied": LlamaConfig(
        **SMALL, attention_bias=True, mlp_bias=True, tie_word_embeddings=True
    ),
    "llama, wide heads": LlamaConfig(**SMALL, head_dim=32),
    "llama 3 rope": LlamaConfig(**SMALL, rope_parameters=LLAMA3),
    "linear rope": LlamaConfig(
        **SMALL, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
    ),
    "yarn rope": LlamaConfig(**SMALL, rope_parameters=YARN),
    "mistral": MistralConfig(**SMALL, sliding_window=None),
    "mistral, window": MistralConfig(**SMALL, sliding_window=9),
    "qwen2": Qwen2Config(**SMALL),
    "qwen2, window in the upper layers": Qwen2Config(
        **SMALL, use_sliding_window=True, sliding_window=8, max_window_layers=1
    ),
    "qwen3": Qwen3Config(**SMALL, head_dim=16),
    "smollm3": SmolLM3Config(**SMALL, no_rope_layers=[1, 0, 1]),
    "granite": GraniteConfig(
        **SMALL,
        embedding_multiplier=3.0,
        residual_multiplier=0.4,
        logits_scaling=2.0,
        attention_multiplier=0.1,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_and_text_match_the_reference(name: str, tmp_path: Path) -> None:
    """Logits agree within fp32 rounding, the text is equal, and chunks have the same bits."""
    compare(CASES[name], tmp_path)
