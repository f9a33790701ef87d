"""Gemma 1, 2 and 3 against the reference implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    GemmaConfig,
    PretrainedConfig,
)

from octavo.loader import CheckpointError
from octavo.models.config_reader import Config, ConfigurationError
from octavo.models.registry import family_of
from tests.models import small
from tests.models.compare import compare, load

SMALL: dict[str, Any] = {**small.SMALL, "num_attention_heads": 4, "head_dim": 16}
SEVEN: dict[str, Any] = {**SMALL, "num_hidden_layers": 7, "sliding_window": 9}
BY_KIND = {
    "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
CASES: dict[str, PretrainedConfig] = {
    "gemma": GemmaConfig(**SMALL),
    "gemma, one KV head, untied, biases": GemmaConfig(
        **{**SMALL, "num_key_value_heads": 1}, tie_word_embeddings=False, attention_bias=True
    ),
    "gemma 2": Gemma2Config(**SMALL, sliding_window=9),
    "gemma 2, tight caps, another scale": Gemma2Config(
        **SMALL,
        sliding_window=5,
        query_pre_attn_scalar=144,
        attn_logit_softcapping=0.5,
        final_logit_softcapping=2.0,
    ),
    "gemma 2, no caps, wide heads, untied": Gemma2Config(
        **{**SMALL, "head_dim": 32},
        sliding_window=64,
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
        tie_word_embeddings=False,
    ),
    "gemma 3": Gemma3TextConfig(**SEVEN),
    "gemma 3, scaled where it sees far": Gemma3TextConfig(**SEVEN, rope_parameters=BY_KIND),
    "gemma 3, layer by layer, biases": Gemma3TextConfig(
        **SMALL,
        sliding_window=4,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        attention_bias=True,
        final_logit_softcapping=3.0,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_and_text_match_the_reference(name: str, tmp_path: Path) -> None:
    """Logits agree within fp32 rounding, the text is equal, and chunks have the same bits."""
    compare(CASES[name], tmp_path)


def _seeing(directory: Path) -> tuple[torch.Tensor, list[int]]:
    """Save a small multimodal Gemma 3; return the reference's logits for a prompt of text."""
    config = Gemma3Config(
        text_config={**SEVEN, "vocab_size": 101},
        vision_config={
            "hidden_size": 8,
            "intermediate_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "image_size": 8,
            "patch_size": 4,
        },
        image_token_index=100,
        boi_token_index=98,
        eoi_token_index=99,
        mm_tokens_per_image=4,
        architectures=["Gemma3ForConditionalGeneration"],
    )
    torch.manual_seed(0)
    make: Any = AutoModelForCausalLM.from_config
    reference = make(config, dtype=torch.float32).eval()
    reference.save_pretrained(directory)
    prompt = np.random.default_rng(1).integers(3, 97, 37).tolist()
    with torch.no_grad():
        return reference(torch.tensor([prompt])).logits[0], prompt


# The name of one tensor of each part, in published checkpoints and in those saved since.
SPELLINGS = {
    "published": {"text": "language_model.model.", "eyes": "vision_tower.", "between": ""},
    "since": {"text": "model.language_model.", "eyes": "model.vision_tower.", "between": "model."},
}


def _spell(name: str, spelling: dict[str, str]) -> str:
    """Return a tensor's name in a spelling."""
    for known in SPELLINGS.values():
        for part in ("text", "eyes"):
            if name.startswith(known[part]):
                return spelling[part] + name.removeprefix(known[part])
    return spelling["between"] + name.removeprefix("model.")


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_text_part_of_a_multimodal_model(spelling: str, tmp_path: Path) -> None:
    """Tensor names are read in two spellings, and the vision part is ignored."""
    expected, prompt = _seeing(tmp_path)
    path = tmp_path / "model.safetensors"
    words = SPELLINGS[spelling]
    tensors = {_spell(name, words): tensor for name, tensor in load_file(path).items()}
    assert f"{words['text']}norm.weight" in tensors
    assert any(name.startswith(words["eyes"]) for name in tensors)
    assert f"{words['between']}multi_modal_projector.mm_input_projection_weight" in tensors
    save_file(tensors, path)
    logits = load(tmp_path).logits(prompt)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_two_names_for_one_tensor_are_refused(tmp_path: Path) -> None:
    """The loader cannot know which of the two is right."""
    _seeing(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    names = [words["text"] + "norm.weight" for words in SPELLINGS.values()]
    present = next(tensors[name] for name in names if name in tensors)
    save_file(tensors | dict.fromkeys(names, present), path)
    with pytest.raises(CheckpointError, match=r"does not use.*norm\.weight"):
        load(tmp_path)


def test_the_embedding_scale_is_rounded_to_the_type_of_the_weights() -> None:
    """√3072 is 55.4256…; a bfloat16 model was trained with 55.5."""
    values = {**SMALL, "hidden_size": 3072, "architectures": ["Gemma2ForCausalLM"]}
    values["sliding_window"] = 8
    for architecture in ("GemmaForCausalLM", "Gemma2ForCausalLM"):
        values["architectures"] = [architecture]
        family = family_of(architecture)
        assert family.read(Config({**values, "dtype": "bfloat16"})).embed_scale == 55.5
        assert family.read(Config(values)).embed_scale == 3072**0.5


def test_gelu_in_the_first_files_means_its_approximation() -> None:
    """The reference reads these files in the same way."""
    values = {**SMALL, "architectures": ["GemmaForCausalLM"], "hidden_act": "gelu"}
    spec = family_of("GemmaForCausalLM").read(Config(values))
    assert spec.activation == "gelu_pytorch_tanh"
    values["hidden_activation"] = "relu"
    assert family_of("GemmaForCausalLM").read(Config(values)).activation == "relu"


def test_a_published_text_config_needs_defaults() -> None:
    """Missing values are those of Gemma 3; one scaling is for layers without a window."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    values = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    spec = family_of("Gemma3ForConditionalGeneration").read(Config(json.loads(json.dumps(values))))
    assert (spec.heads, spec.kv_heads, spec.head_dim, spec.vocabulary) == (8, 4, 256, 262_208)
    assert spec.windows[:7] == (1024, 1024, 1024, 1024, 1024, None, 1024)
    near, far = spec.ropes[0], spec.ropes[5]
    assert near is not None
    assert far is not None
    assert near.frequencies[1] == pytest.approx(1 / 10_000 ** (2 / 256))
    assert far.frequencies[1] == pytest.approx(1 / 1_000_000 ** (2 / 256) / 8)
    assert spec.tied


def test_an_encoder_is_refused() -> None:
    """The layers of an encoder attend to later tokens."""
    values = {**SEVEN, "use_bidirectional_attention": True}
    with pytest.raises(ConfigurationError, match="use_bidirectional_attention"):
        family_of("Gemma3ForCausalLM").read(Config(values))
    first = {**SEVEN, "architectures": ["GemmaForCausalLM"], "use_bidirectional_attention": True}
    with pytest.raises(ConfigurationError, match="use_bidirectional_attention"):
        family_of("GemmaForCausalLM").read(Config(first))
