"""GPT-NeoX against the reference implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import GPTNeoXConfig

from tests.models.compare import compare, load

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CASES: dict[str, GPTNeoXConfig] = {
    "pythia": GPTNeoXConfig(**SMALL),
    "blocks in turn": GPTNeoXConfig(**SMALL, use_parallel_residual=False),
    "no biases, tied": GPTNeoXConfig(**SMALL, attention_bias=False, tie_word_embeddings=True),
    "whole heads turn": GPTNeoXConfig(
        **SMALL,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 500.0,
            "partial_rotary_factor": 1.0,
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_and_text_match_the_reference(name: str, tmp_path: Path) -> None:
    """Logits agree within fp32 rounding, the text is equal, and chunks have the same bits."""
    compare(CASES[name], tmp_path)


def test_the_older_keys_of_published_configs_are_read(tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}
    compare(GPTNeoXConfig(**SMALL, rope_parameters=rope), tmp_path)
    expected = load(tmp_path).logits([1, 2, 3])
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    del values["rope_parameters"]
    path.write_text(json.dumps({**values, "rotary_pct": 0.5, "rotary_emb_base": 500}))
    assert np.array_equal(load(tmp_path).logits([1, 2, 3]), expected)
