"""Cohere 1 and 2 against the reference implementation."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import Cohere2Config, CohereConfig, PretrainedConfig

from octavo.models.config_reader import Config
from octavo.models.registry import family_of
from tests.models.compare import compare
from tests.models.small import SMALL

CASES: dict[str, PretrainedConfig] = {
    "cohere": CohereConfig(**SMALL),
    "cohere, norms on queries and keys": CohereConfig(**SMALL, use_qk_norm=True),
    "cohere, untied, biases, scaled logits": CohereConfig(
        **SMALL, tie_word_embeddings=False, attention_bias=True, logit_scale=0.8
    ),
    "cohere 2": Cohere2Config(**{**SMALL, "num_hidden_layers": 5}, sliding_window=9),
    "cohere 2, layer by layer, untied, biases": Cohere2Config(
        **SMALL,
        sliding_window=6,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        tie_word_embeddings=False,
        attention_bias=True,
        logit_scale=0.25,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_and_text_match_the_reference(name: str, tmp_path: Path) -> None:
    """Logits agree within fp32 rounding, the text is equal, and chunks have the same bits."""
    compare(CASES[name], tmp_path)


def test_cohere_2_reads_the_published_pattern() -> None:
    """Every third layer has no window and no rotation."""
    values = {**SMALL, "sliding_window": 8, "sliding_window_pattern": 3, "rope_theta": 50_000}
    spec = family_of("Cohere2ForCausalLM").read(
        Config({**values, "architectures": ["Cohere2ForCausalLM"]})
    )
    assert spec.windows == (8, 8, None)
    assert [rope is None for rope in spec.ropes] == [False, False, True]
