"""Falcon against the reference implementation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import FalconConfig

from octavo.models.config_reader import Config, ConfigurationError
from octavo.models.falcon import Falcon
from tests.models.compare import compare

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED: dict[str, Any] = {**SMALL, "new_decoder_architecture": True, "num_kv_heads": 2}
CASES: dict[str, FalconConfig] = {
    "7B: one KV head": FalconConfig(**SMALL),
    "7B, biases, a head of its own": FalconConfig(**SMALL, bias=True, tie_word_embeddings=False),
    "a KV head for each head": FalconConfig(**SMALL, multi_query=False),
    "40B: grouped, two norms": FalconConfig(**GROUPED),
    "11B: grouped, one norm": FalconConfig(
        **GROUPED, num_ln_in_parallel_attn=1, ffn_hidden_size=80, bias=True
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_and_text_match_the_reference(name: str, tmp_path: Path) -> None:
    """Logits agree within fp32 rounding, the text is equal, and chunks have the same bits."""
    compare(CASES[name], tmp_path)


@pytest.mark.parametrize("change", [{"alibi": True}, {"parallel_attn": False}])
def test_unsupported_variants_are_refused_by_name(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="Falcon-RW"):
        Falcon.read(Config({**FalconConfig(**SMALL).to_dict(), **change}))
