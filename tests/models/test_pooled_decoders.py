"""Decoders saved without a head, or with a classifier, equal transformers' on both backends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from octavo import LLM, PoolingParams, SamplingParams
from octavo.core.config import ConfigError
from octavo.loader import CheckpointError
from octavo.loader import resolve as resolve_source
from octavo.models.kv_layout import place_layers
from octavo.models.load import open_model
from octavo.options.engine import EngineArguments
from octavo.resolve import make_bill, resolve
from tests.api.tiny import TEXTS, make_tokenizer_files

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
GPT2_SIZES = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
NARROW = {"head_dim": 16, "sliding_window": 5}
# The class of transformers, and what its configuration adds.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3Model": ("Qwen3", {"head_dim": 16}),
    "MistralModel": ("Mistral", {"sliding_window": 5}),
    "Gemma2Model": ("Gemma2", NARROW),
    "MixtralModel": ("Mixtral", {"num_local_experts": 3}),
    "GPTNeoXModel": ("GPTNeoX", {}),
    "FalconModel": ("Falcon", {}),
    "GPT2Model": ("GPT2", GPT2_SIZES),
    "GPT2LMHeadModel": ("GPT2", GPT2_SIZES),
    "Qwen3ForSequenceClassification": ("Qwen3", {"head_dim": 16, "num_labels": 1}),
    "Qwen2ForSequenceClassification": ("Qwen2", {"num_labels": 3}),
    "GPT2ForSequenceClassification": ("GPT2", {**GPT2_SIZES, "num_labels": 2}),
    "Gemma3TextForSequenceClassification": ("Gemma3Text", {**NARROW, "num_labels": 2}),
    "LlamaForTokenClassification": ("Llama", {"num_labels": 2}),
}


def make_checkpoint(name: str, directory: Path) -> Any:
    """Save a random model and a tokenizer, and return the model."""
    base, fields = CASES[name]
    torch.manual_seed(3)
    configuration = getattr(transformers, f"{base}Config")(**{**SIZES, **fields})
    model = getattr(transformers, name)(configuration).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(directory)
    make_tokenizer_files(directory)
    return model


def open_llm(directory: Path, backend: str, **options: Any) -> LLM:
    return LLM(
        str(directory), backend=backend, dtype="float32", num_gpu_blocks_override=50, **options
    )


@pytest.mark.parametrize("name", CASES)
def test_the_reference_agrees(name: str, tmp_path: Path) -> None:
    model = make_checkpoint(name, tmp_path)
    raw = PoolingParams(use_activation=False)
    for backend in ("torch", "native"):
        with open_llm(tmp_path, backend) as llm:
            prompts = [llm.get_tokenizer().encode(text) for text in TEXTS]
            states = llm.encode(prompts, raw, use_tqdm=False)
            found: list[Any] = [output.outputs.data for output in states]
            if name.endswith("ForSequenceClassification"):
                classes = llm.classify(prompts, raw, use_tqdm=False)
                found = [output.outputs.probs for output in classes]
            elif name.endswith("ForTokenClassification"):
                tokens = llm.encode(prompts, raw, pooling_task="token_classify", use_tqdm=False)
                found = [output.outputs.data for output in tokens]
            elif name == "GPT2LMHeadModel":
                greedy = SamplingParams(max_tokens=1, temperature=0.0)
                texts = llm.generate(prompts, greedy, use_tqdm=False)
                found = [text.outputs[0].token_ids for text in texts]
        for prompt, values in zip(prompts, found, strict=True):
            with torch.no_grad():
                output = model(torch.tensor([prompt]))
            if name.endswith("Model") and name != "GPT2LMHeadModel":
                expected = output.last_hidden_state[0, -1]
            else:
                expected = output.logits[0]
            if name == "GPT2LMHeadModel":
                expected = expected[-1:].argmax(-1)
            np.testing.assert_allclose(values, expected.numpy(), atol=1e-5, err_msg=backend)


def test_a_decoder_that_reads_both_ways_is_refused(tmp_path: Path) -> None:
    model = make_checkpoint("Qwen3Model", tmp_path)
    model.config.is_causal = False
    model.config.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="is_causal = False makes an encoder"):
        open_llm(tmp_path, "native")


def test_memory_for_grammars_is_kept_where_they_are_bounded(tmp_path: Path) -> None:
    """An embedding model has no grammars, and in a caller's process nothing bounds them."""
    for name, kept in (("GPT2LMHeadModel", 128 << 20), ("Qwen3Model", 0)):
        make_checkpoint(name, tmp_path / name)
        with open_llm(tmp_path / name, "native") as llm:
            assert llm._model.facts.memory_bytes["grammars"] == 0
        arguments = EngineArguments(str(tmp_path / name), num_gpu_blocks_override=50)
        opened = open_model(resolve_source(arguments.model))
        layout = place_layers(opened.model)
        assert resolve(arguments, opened, layout).bill.grammar_bytes == kept
        assert make_bill(arguments, opened, layout).grammar_bytes == kept


def test_settings_of_pooling_go_before_those_of_the_files(tmp_path: Path) -> None:
    """Settings of another kind of model are refused before the weights are loaded."""
    model = make_checkpoint("Qwen3Model", tmp_path)
    config = {"pooling_type": "MEAN", "use_activation": False, "dimensions": 8, "task": "embed"}
    with open_llm(tmp_path, "native", pooler_config=config) as llm:
        ids = llm.get_tokenizer().encode(TEXTS[0])
        (found,) = llm.embed([ids], use_tqdm=False)
        (encoded,) = llm.encode([ids], use_tqdm=False)
    with torch.no_grad():
        states = model(torch.tensor([ids])).last_hidden_state[0]
    expected = states.mean(0)[:8].numpy()
    np.testing.assert_allclose(found.outputs.embedding, expected, atol=1e-5)
    assert encoded.outputs.data == found.outputs.embedding
    with pytest.raises(ConfigError, match="pooler_config: logit_mean"):
        open_llm(tmp_path, "native", pooler_config={"logit_mean": 1})
