"""A tiny model directory: random weights, and a tokenizer trained on a few sentences."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from octavo import LLM, AsyncLLM, SamplingParams
from octavo.api.requests import RequestTable, check_request
from octavo.client.inline import InlineClient
from octavo.core.engine import EngineCore
from octavo.core.request import Request

TEXTS = (
    "The quick brown fox jumps over the lazy dog, and the dog does not mind.",
    "A day in the country is worth a month in town; so they say, at least.",
    "Ein Tag wie jeder andere, nur dass es regnet. Größe, Übermut, Straße.",
)
TEMPLATE = (
    "{% for message in messages %}<s>{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)
SIZES = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}


def make_model(
    directory: Path, template: str = TEMPLATE, special: Sequence[str] = ("<s>", "</s>")
) -> Path:
    """Write the directory; the same bytes every time."""
    from safetensors.numpy import save_file

    make_tokenizer_files(directory, template, special)
    config = {**SIZES, "architectures": ["LlamaForCausalLM"], "eos_token_id": 1, "bos_token_id": 0}
    (directory / "config.json").write_text(json.dumps(config))
    save_file(_weights(), str(directory / "model.safetensors"))
    return directory


def make_tokenizer_files(
    directory: Path, template: str = TEMPLATE, special: Sequence[str] = ("<s>", "</s>")
) -> Path:
    """Write the tokenizer's files only."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=list(special),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


def core_of(engine: AsyncLLM) -> EngineCore:
    """Return the core that an engine in this process steps."""
    client = engine._client
    assert isinstance(client, InlineClient)
    assert client._core is not None
    return client._core


def requests_of(llm: LLM, prompt: str, sampling: SamplingParams) -> list[Request]:
    """Return the core's requests for a prompt, without running them."""
    model = llm._runner._model
    return RequestTable(model).open("n", check_request(model, prompt, sampling), 0.0)


def _weights() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(7)
    hidden, ffn, vocabulary = 32, 48, 300

    def matrix(rows: int, columns: int) -> np.ndarray:
        scale = 1.5 / columns**0.5
        return (generator.standard_normal((rows, columns)) * scale).astype(np.float32)

    weights = {
        "model.embed_tokens.weight": matrix(vocabulary, hidden) * 6,
        "lm_head.weight": matrix(vocabulary, hidden),
        "model.norm.weight": np.ones(hidden, np.float32),
    }
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        for name, rows, columns in (
            ("self_attn.q_proj", hidden, hidden),
            ("self_attn.k_proj", hidden // 2, hidden),
            ("self_attn.v_proj", hidden // 2, hidden),
            ("self_attn.o_proj", hidden, hidden),
            ("mlp.gate_proj", ffn, hidden),
            ("mlp.up_proj", ffn, hidden),
            ("mlp.down_proj", hidden, ffn),
        ):
            weights[f"{prefix}{name}.weight"] = matrix(rows, columns)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{name}.weight"] = np.ones(hidden, np.float32)
    return weights
