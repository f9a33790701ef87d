"""Encoders of each family equal transformers', on both backends, for texts side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from octavo.backends.native.backend import NativeBackend, NativeOptions
from octavo.backends.step import HostBatch
from octavo.backends.torch.backend import TorchBackend
from octavo.loader import resolve
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.models.load import open_model

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 120,
}
OTHER_SIZES = {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 96, "vocab_size": 120}
# (class, configuration, the fields of the configuration)
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "bert": (transformers.BertModel, transformers.BertConfig, SIZES),
    "roberta": (transformers.RobertaModel, transformers.RobertaConfig, SIZES),
    "xlm_roberta": (
        transformers.XLMRobertaModel,
        transformers.XLMRobertaConfig,
        {**SIZES, "max_position_embeddings": 700},
    ),
    "mpnet": (
        transformers.MPNetModel,
        transformers.MPNetConfig,
        {**SIZES, "max_position_embeddings": 700},
    ),
    "distilbert": (transformers.DistilBertModel, transformers.DistilBertConfig, OTHER_SIZES),
    "nomic": (
        transformers.NomicBertModel,
        transformers.NomicBertConfig,
        {**SIZES, "max_position_embeddings": 700},
    ),
    "modernbert": (
        transformers.ModernBertModel,
        transformers.ModernBertConfig,
        {**SIZES, "num_hidden_layers": 4, "local_attention": 20, "max_position_embeddings": 700},
    ),
}
LENGTHS = (1, 16, 37, 90, 2)
LONG = 620  # more than a split of 512 positions
BLOCK = 16


def make_checkpoint(name: str, directory: Path) -> Any:
    """Save a random model, and return it."""
    kind, configuration, fields = FAMILIES[name]
    torch.manual_seed(5)
    tokens = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    if name == "modernbert":
        tokens |= {"cls_token_id": 0, "sep_token_id": 2}
    model = kind(configuration(**fields, **tokens)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.2 if parameter.ndim > 1 else 0.4)
    model.save_pretrained(directory)
    return model


def states_of(
    directory: Path, backend: TorchBackend | NativeBackend, texts: list[list[int]], types: Any
) -> list[np.ndarray]:
    """Return the hidden states of all tokens of texts that share a step."""
    opened = open_model(resolve(str(directory)))
    layout = place_layers(opened.model)
    bind(opened.model, backend, opened.weights)
    backend.prepare(opened.model, layout, BLOCK)
    backend.settle()
    counts = np.array([len(text) for text in texts])
    blocks = -(-counts // BLOCK)
    backend.make_cache(int(blocks.sum()))
    first = np.cumsum(blocks) - blocks
    tables = np.minimum(first[:, None] + np.arange(blocks.max()), blocks.sum() - 1)
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    rows = int(starts[-1])
    batch = HostBatch(
        token_ids=np.concatenate(texts).astype(np.int32),
        positions=np.concatenate([np.arange(count) for count in counts]).astype(np.int32),
        row_starts=starts,
        tables=(tables.astype(np.int32),),
        logits_rows=np.zeros(0, np.int32),
        hidden_rows=np.arange(rows, dtype=np.int32),
        types=types,
    )
    hidden = backend.forward(batch).hidden.copy()
    return np.split(hidden, starts[1:-1])


@pytest.mark.parametrize("name", FAMILIES)
def test_the_reference_agrees(name: str, tmp_path: Path) -> None:
    model = make_checkpoint(name, tmp_path)
    rng = np.random.default_rng(3)
    lengths = (*LENGTHS, LONG) if FAMILIES[name][2].get("max_position_embeddings") else LENGTHS
    texts = [rng.integers(3, 120, length).tolist() for length in lengths]
    has_types = name in ("bert", "nomic")
    seconds = [np.arange(len(text)) >= len(text) // 2 for text in texts]
    types = np.concatenate(seconds).astype(np.int32) if has_types else np.zeros(0, np.int32)
    native = NativeOptions(kv_dtype="float32", weights="float32", num_threads=2)
    found = {
        "torch": states_of(tmp_path, TorchBackend(), texts, types),
        "native": states_of(tmp_path, NativeBackend(native), texts, types),
    }
    for index, text in enumerate(texts):
        given = {"token_type_ids": torch.tensor([seconds[index].tolist()]).long()}
        with torch.no_grad():
            expected = model(torch.tensor([text]), **(given if has_types else {}))
        states = expected.last_hidden_state[0].numpy()
        for backend, all_states in found.items():
            np.testing.assert_allclose(
                all_states[index], states, atol=2e-4, rtol=2e-4, err_msg=f"{backend} {len(text)}"
            )
    alone = states_of(tmp_path, NativeBackend(native), texts[3:4], types[:0])
    if not has_types:
        np.testing.assert_array_equal(alone[0], found["native"][3])
