"""The files of sentence-transformers: what is read, what is refused, and layers behind pooling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from octavo.loader.errors import CheckpointError
from octavo.models.pooling_heads import read_dense
from octavo.models.sentence_files import sentence_model_in

TYPE = "sentence_transformers.models."


def write(directory: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    return directory


def modules(*kinds: str) -> list[dict[str, str]]:
    paths = ["" if kind == "Transformer" else f"1_{kind}" for kind in kinds]
    return [{"type": TYPE + kind, "path": path} for kind, path in zip(kinds, paths, strict=True)]


def test_all_files_together(tmp_path: Path) -> None:
    dense = {"in_features": 3, "out_features": 2, "activation_function": "torch.nn.Tanh"}
    write(
        tmp_path,
        {
            "modules.json": modules("Transformer", "Pooling", "Dense", "Normalize"),
            "1_Pooling/config.json": {"pooling_mode_cls_token": True, "include_prompt": True},
            "1_Dense/config.json": dense,
            "sentence_bert_config.json": {"max_seq_length": 9},
            "config_sentence_transformers.json": {
                "prompts": {"query": "find: "},
                "default_prompt_name": "query",
            },
        },
    )
    weight = np.array([[1, 0, 2], [0, -1, 0]], np.float32)
    tensors = {"linear.weight": weight, "linear.bias": np.array([0.5, 0], np.float32)}
    save_file(tensors, tmp_path / "1_Dense/model.safetensors")
    found = sentence_model_in(tmp_path)
    assert found is not None
    assert (found.kind, found.normalize, found.max_len) == ("cls", True, 9)
    assert (found.prompts, found.default_prompt) == ({"query": "find: "}, "query")
    rows = np.array([[1, 2, 3], [0, 0, 0]], np.float32)
    expected = np.tanh(rows @ weight.T + tensors["linear.bias"])
    np.testing.assert_allclose(read_dense(found.dense, 3)(rows), expected, rtol=1e-6)
    with pytest.raises(CheckpointError, match="takes 3 numbers, and 4 come"):
        read_dense(found.dense, 4)


def test_a_model_without_them_says_nothing(tmp_path: Path) -> None:
    assert sentence_model_in(tmp_path) is None


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"modules.json": {"0": 1}}, "must be a list"),
        ({"modules.json": [{"type": 3}]}, "must have a type and a path"),
        ({"modules.json": [{"type": TYPE + "Pooling", "path": "../x"}]}, "a path inside"),
        ({"modules.json": modules("CNN")}, "has the module 'CNN'"),
        (
            {
                "modules.json": modules("Pooling"),
                "1_Pooling/config.json": {"pooling_mode_max_tokens": True},
            },
            "pools by 'pooling_mode_max_tokens'",
        ),
        (
            {
                "modules.json": modules("Transformer"),
                "sentence_bert_config.json": {"max_seq_length": "9"},
            },
            "max_seq_length must be a number",
        ),
        (
            {
                "modules.json": modules("Pooling"),
                "1_Pooling/config.json": {"pooling_mode": "mean", "include_prompt": False},
                "config_sentence_transformers.json": {"prompts": {"query": "find: "}},
            },
            "include_prompt is false",
        ),
        (
            {
                "modules.json": modules("LogitScore"),
                "1_LogitScore/config.json": {"true_token_id": 5, "false_token_id": "no"},
            },
            "true_token_id must be a token's id",
        ),
        (
            {
                "modules.json": modules("Transformer"),
                "config_sentence_transformers.json": {"default_prompt_name": "query"},
            },
            "'query' is no prompt",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(
    tmp_path: Path, files: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        sentence_model_in(write(tmp_path, files))
