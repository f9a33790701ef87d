"""StableLM against the reference implementation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import StableLmConfig

from octavo.models.config_reader import Config, ConfigurationError
from octavo.models.stablelm import StableLM
from tests.models import small
from tests.models.compare import compare

SMALL: dict[str, Any] = {**small.SMALL, "hidden_size": 64, "num_attention_heads": 4}
CASES: dict[str, StableLmConfig] = {
    "stablelm": StableLmConfig(**SMALL),
    "biases, tied": StableLmConfig(**SMALL, use_qkv_bias=True, tie_word_embeddings=True),
    "a norm for each head": StableLmConfig(**SMALL, qk_layernorm=True),
    "side by side, a norm for each head": StableLmConfig(
        **SMALL, qk_layernorm=True, use_parallel_residual=True
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_and_text_match_the_reference(name: str, tmp_path: Path) -> None:
    """Logits agree within fp32 rounding, the text is equal, and chunks have the same bits."""
    compare(CASES[name], tmp_path)


@pytest.mark.parametrize("factor", [0.0, 0.02, 1.5])
def test_an_impossible_share_of_rotating_dimensions_is_refused(factor: float) -> None:
    """The share must not be zero or above one."""
    values = {**StableLmConfig(**SMALL).to_dict(), "partial_rotary_factor": factor}
    del values["rope_parameters"]
    with pytest.raises(
        ConfigurationError, match=r"head_dim 16: a share of 0|factor must be from 0 to 1"
    ):
        StableLM.read(Config(values))
