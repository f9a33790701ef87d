"""GPT-2 against the reference implementation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file
from transformers import GPT2Config

from octavo.models.config_reader import Config, ConfigurationError
from octavo.models.gpt2 import GPT2
from tests.models.compare import compare, load

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "n_embd": 48,
    "n_layer": 3,
    "n_head": 6,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CASES: dict[str, GPT2Config] = {
    "gpt2": GPT2Config(**SMALL),
    "a head of its own": GPT2Config(**SMALL, tie_word_embeddings=False),
    "another width and activation": GPT2Config(**SMALL, n_inner=80, activation_function="relu"),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_and_text_match_the_reference(name: str, tmp_path: Path) -> None:
    """Logits agree within fp32 rounding, the text is equal, and chunks have the same bits."""
    compare(CASES[name], tmp_path)


def test_names_without_their_prefix_and_masks_beside_the_weights(tmp_path: Path) -> None:
    """The first published GPT-2 has no `transformer.` in its names, and contains causal masks."""
    compare(CASES["gpt2"], tmp_path)
    expected = load(tmp_path).logits([1, 2, 3])
    path = tmp_path / "model.safetensors"
    tensors = {name.removeprefix("transformer."): data for name, data in load_file(path).items()}
    for layer in range(SMALL["n_layer"]):
        tensors[f"h.{layer}.attn.bias"] = tensors["ln_f.bias"][None, None]
    save_file(tensors, path)
    assert (load(tmp_path).logits([1, 2, 3]) == expected).all()


@pytest.mark.parametrize(
    ("key", "value"), [("scale_attn_by_inverse_layer_idx", True), ("add_cross_attention", True)]
)
def test_unsupported_options_are_refused(key: str, value: bool) -> None:
    with pytest.raises(ConfigurationError, match=key):
        GPT2.read(Config({**GPT2Config(**SMALL).to_dict(), key: value}))
