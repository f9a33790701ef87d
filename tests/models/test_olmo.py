"""OLMo 2 and 3 against the reference implementation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import Olmo2Config, Olmo3Config, PretrainedConfig

from octavo.models.config_reader import Config
from octavo.models.registry import family_of
from tests.models import small
from tests.models.compare import compare
from tests.models.small import SMALL

YARN: dict[str, Any] = {**small.YARN, "attention_factor": 1.2}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
CASES: dict[str, PretrainedConfig] = {
    "olmo 2": Olmo2Config(**SMALL),
    "olmo 2, as many KV heads, tied, biases": Olmo2Config(
        **{**SMALL, "num_key_value_heads": 6}, tie_word_embeddings=True, attention_bias=True
    ),
    "olmo 2, yarn": Olmo2Config(**SMALL, rope_parameters=YARN),
    "olmo 3": Olmo3Config(**{**SMALL, "num_hidden_layers": 5}, sliding_window=9),
    "olmo 3, scaled where it sees far": Olmo3Config(
        **SMALL,
        sliding_window=6,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={"full_attention": YARN, "sliding_attention": PLAIN},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_and_text_match_the_reference(name: str, tmp_path: Path) -> None:
    """Logits agree within fp32 rounding, the text is equal, and chunks have the same bits."""
    compare(CASES[name], tmp_path)


def test_a_single_scaling_of_olmo_3_is_for_layers_without_a_window() -> None:
    """The first published files have no scaling for each kind."""
    values = {
        **SMALL,
        "num_hidden_layers": 4,
        "sliding_window": 8,
        "rope_theta": 500_000,
        "rope_scaling": YARN | {"rope_theta": None},
    }
    spec = family_of("Olmo3ForCausalLM").read(
        Config({**values, "architectures": ["Olmo3ForCausalLM"]})
    )
    assert spec.windows == (8, 8, 8, None)
    near, far = spec.ropes[0], spec.ropes[3]
    assert near is not None
    assert far is not None
    assert (near.magnitude, far.magnitude) == (1.0, 1.2)
    assert near.frequencies[-1] == pytest.approx(500_000 ** (-6 / 8))
    assert far.frequencies[-1] == pytest.approx(500_000 ** (-6 / 8) / 4)
