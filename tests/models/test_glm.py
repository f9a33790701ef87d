"""The first GLM-4 and that of 2025 against the reference implementation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import Glm4Config, GlmConfig, PretrainedConfig

from tests.models import small
from tests.models.compare import compare

SMALL: dict[str, Any] = {**small.SMALL, "num_attention_heads": 4, "head_dim": 16}
QUARTER = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
CASES: dict[str, PretrainedConfig] = {
    "glm": GlmConfig(**SMALL),
    "glm, no biases, odd heads": GlmConfig(**{**SMALL, "head_dim": 14}, attention_bias=False),
    "glm 4": Glm4Config(**SMALL),
    "glm 4, no biases, tied, a quarter turns": Glm4Config(
        **SMALL, attention_bias=False, tie_word_embeddings=True, rope_parameters=QUARTER
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_and_text_match_the_reference(name: str, tmp_path: Path) -> None:
    """Logits agree within fp32 rounding, the text is equal, and chunks have the same bits."""
    compare(CASES[name], tmp_path)
