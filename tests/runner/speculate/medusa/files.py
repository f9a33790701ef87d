"""Synthetic files of Medusa heads, in the layouts that are published."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.runner.speculate.head_files import HIDDEN, VOCABULARY, Tensors, load, save

MEDUSA_FILE = "medusa_lm_head.safetensors"
NUM_HEADS = 3
NUM_DRAFTED = 220  # tokens of heads with a vocabulary of their own


def make_medusa(directory: Path, *, layers: int = 1, has_bias: bool = True) -> Path:
    """Write heads for the tiny model, as FasterDecoding publishes them."""
    generator = np.random.default_rng(29)
    tensors: Tensors = {}
    for head in range(NUM_HEADS):
        for layer in range(layers):
            matrix = generator.standard_normal((HIDDEN, HIDDEN)) * 1.5 / HIDDEN**0.5
            tensors[f"{head}.{layer}.linear.weight"] = matrix.astype(np.float32)
            if has_bias:
                bias = generator.standard_normal(HIDDEN)
                tensors[f"{head}.{layer}.linear.bias"] = bias.astype(np.float32)
        matrix = generator.standard_normal((VOCABULARY, HIDDEN))
        tensors[f"{head}.{layers}.weight"] = matrix.astype(np.float32)
    config = {
        "base_model_name_or_path": "lmsys/vicuna-7b-v1.3",
        "medusa_num_heads": NUM_HEADS,
        "medusa_num_layers": layers,
    }
    return save(directory, config, tensors, MEDUSA_FILE)


def as_vllm(directory: Path, prefix: str = "", *, own: int = VOCABULARY) -> Path:
    """Rewrite heads in vLLM's form, perhaps with a vocabulary of their own."""
    published, tensors = load(directory, MEDUSA_FILE)
    (directory / MEDUSA_FILE).unlink()
    layers = published["medusa_num_layers"]
    made: Tensors = {}
    for name, values in tensors.items():
        head, layer, *rest = name.split(".")
        if rest[0] == "linear":
            made[f"{prefix}blocks.{head}.layers.{layer}.{rest[1]}"] = values
        else:
            made[f"{prefix}lm_heads.{head}.weight"] = np.ascontiguousarray(values[:own])
    config = {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "hidden_size": HIDDEN,
        "vocab_size": VOCABULARY,
        "num_heads": NUM_HEADS,
        "num_hidden_layers": layers,
    }
    if own < VOCABULARY:
        made["token_map"] = np.sort(np.random.default_rng(5).permutation(VOCABULARY)[:own])
        config["truncated_vocab_size"] = own
    return save(directory, config, made)
