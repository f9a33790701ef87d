"""LFM2 against the reference implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, Lfm2Config

from octavo.core.config import ConfigError
from octavo.loader import resolve as resolve_source
from octavo.models.config_reader import Config, ConfigurationError
from octavo.models.kv_layout import place_layers
from octavo.models.lfm2 import Lfm2
from octavo.models.load import open_model
from octavo.options.engine import EngineArguments
from octavo.options.speculation import SpeculativeConfig
from octavo.resolve import resolve
from tests.models import small
from tests.models.compare import compare

SMALL: dict[str, Any] = {**small.SMALL, "block_multiple_of": 16}
CASES: dict[str, Lfm2Config] = {
    "mostly convolutions": Lfm2Config(**SMALL, full_attn_idxs=[1]),
    "convolution last, biases, its own head": Lfm2Config(
        **SMALL,
        layer_types=["conv", "full_attention", "conv"],
        conv_bias=True,
        tie_word_embeddings=False,
    ),
    "a longer kernel, the size of the MLP as it is": Lfm2Config(
        **SMALL, full_attn_idxs=[0, 2], conv_L_cache=5, block_auto_adjust_ff_dim=False
    ),
    "attention alone": Lfm2Config(**SMALL),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_and_text_match_the_reference(name: str, tmp_path: Path) -> None:
    """Logits agree within fp32 rounding, the text is equal, and chunks have the same bits."""
    compare(CASES[name], tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_types": ["conv"]}, "1 layer_types for 3 layers"),
        ({"layer_types": ["conv", "full_attention", "mamba"]}, "layer_types 'mamba'"),
        ({"conv_L_cache": 1}, "conv_L_cache must be at least 2, is 1"),
        ({"block_multiple_of": 0}, "block_multiple_of must be above 0"),
    ],
)
def test_unsupported_options_are_refused(change: dict[str, Any], message: str) -> None:
    values = json.loads(CASES["mostly convolutions"].to_json_string(use_diff=False))
    values["architectures"] = ["Lfm2ForCausalLM"]
    with pytest.raises(ConfigurationError, match=message):
        Lfm2.read(Config({**values, **change}))


def test_drafts_are_refused(tmp_path: Path) -> None:
    """A state cannot be taken back when a draft is rejected."""
    auto: Any = AutoModelForCausalLM
    auto.from_config(CASES["mostly convolutions"]).save_pretrained(tmp_path)
    opened = open_model(resolve_source(str(tmp_path)))
    drafting = SpeculativeConfig(method="ngram", num_speculative_tokens=3)
    asked = EngineArguments(str(tmp_path), speculative_config=drafting)
    with pytest.raises(ConfigError, match="speculative_config: this model keeps states"):
        resolve(asked, opened, place_layers(opened.model))
