"""Phi-3 and Phi-4, Llamas with fused projections, against the reference implementation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import Phi3Config, PretrainedConfig

from octavo.models.config_reader import ConfigurationError
from tests.models import small
from tests.models.compare import compare, load

SMALL: dict[str, Any] = {**small.SMALL, "original_max_position_embeddings": 64}
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.5],
    "long_factor": [1.0, 1.5, 3.0, 8.0],
}
CASES: dict[str, PretrainedConfig] = {
    "phi 3": Phi3Config(**SMALL),
    "phi 3, window, as many KV heads": Phi3Config(
        **{**SMALL, "num_key_value_heads": 6}, sliding_window=9
    ),
    "phi 4 mini: half turns, tied": Phi3Config(
        **SMALL,
        tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        },
    ),
    "half turns, long factors": Phi3Config(
        **{**SMALL, "original_max_position_embeddings": 16},
        rope_parameters={
            **LONGROPE,
            "partial_rotary_factor": 0.5,
            "short_factor": [1.0, 1.3],
            "long_factor": [1.0, 4.0],
        },
    ),
    "long factors": Phi3Config(
        **{**SMALL, "original_max_position_embeddings": 16}, rope_parameters=LONGROPE
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_and_text_match_the_reference(name: str, tmp_path: Path) -> None:
    """Logits agree within fp32 rounding, the text is equal, and chunks have the same bits."""
    compare(CASES[name], tmp_path)


def test_short_factors_serve_runs_within_the_original_length(tmp_path: Path) -> None:
    """The reference decides by the current sequence, we by the longest that will be run."""
    sizes = {**SMALL, "max_position_embeddings": 128, "original_max_position_embeddings": 52}
    config = Phi3Config(**sizes, rope_parameters=LONGROPE)
    compare(config, tmp_path, max_len=52)
    short, long = load(tmp_path, max_len=52), load(tmp_path)
    assert (short.logits([5, 6, 7]) != long.logits([5, 6, 7])).any()


def test_the_wrong_number_of_factors_is_refused(tmp_path: Path) -> None:
    """Each pair of dimensions that rotate needs one factor."""
    config = Phi3Config(
        **{**SMALL, "original_max_position_embeddings": 16}, rope_parameters=LONGROPE
    )
    compare(config, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"partial_rotary_factor": 1.0', '"x": 1'))
    load(tmp_path)
    path.write_text(path.read_text().replace('"x": 1', '"partial_rotary_factor": 0.5'))
    with pytest.raises(ConfigurationError, match="long_factor must be 2 numbers"):
        load(tmp_path)
