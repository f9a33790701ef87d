"""Synthetic files of DFlash drafters, in the layouts that are published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.runner.speculate.head_files import (
    FFN,
    HEAD_DIM,
    HIDDEN,
    VOCABULARY,
    config_of,
    layer_shapes,
    load,
    matrices,
    norms,
    save,
)

MASK = 299  # the token that stands for one to be drafted
OUTPUTS = (0,)  # layers of the tiny model whose outputs are read; the last one's are not
NUM_DRAFTED = 220  # tokens of a drafter with a head of its own


def make_dflash(
    directory: Path,
    *,
    layers: int = 2,
    block_size: int = 16,
    kv_heads: int = 2,
    ffn: int = FFN,
    **own: Any,
) -> Path:
    """Write a drafter as z-lab publishes them, which has the tiny model's head and embedding."""
    generator = np.random.default_rng(47)
    shapes = {"fc": (HIDDEN, len(OUTPUTS) * HIDDEN)}
    for number in range(layers):
        shapes |= layer_shapes(f"layers.{number}", HIDDEN, kv_heads, ffn)
    tensors = matrices(generator, shapes) | norms(generator, "hidden_norm", "norm")
    for number in range(layers):
        layer = f"layers.{number}"
        tensors |= norms(generator, f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm")
        for name in ("q_norm", "k_norm"):
            values = 1 + 0.2 * generator.standard_normal(HEAD_DIM)
            tensors[f"{layer}.self_attn.{name}.weight"] = values.astype(np.float32)
    config = config_of(
        architectures=["DFlashDraftModel"],
        model_type="qwen3",
        num_hidden_layers=layers,
        num_key_value_heads=kv_heads,
        intermediate_size=ffn,
        head_dim=HEAD_DIM,
        rms_norm_eps=1e-5,
        block_size=block_size,
        dflash_config={"mask_token_id": MASK, "target_layer_ids": list(OUTPUTS)},
        **own,
    )
    return save(directory, config, tensors)


def as_speculators(directory: Path, *, own: int = NUM_DRAFTED, **more: Any) -> Path:
    """Rewrite a drafter in the form of the library speculators, with a vocabulary of its own."""
    config, tensors = load(directory)
    generator = np.random.default_rng(53)
    tokens = np.sort(generator.permutation(VOCABULARY)[:own])
    mask = np.zeros(VOCABULARY, bool)
    mask[tokens] = True
    tensors |= matrices(generator, {"lm_head": (own, HIDDEN)})
    tensors |= {"d2t": tokens - np.arange(own), "t2d": mask}
    dflash, block_size = config.pop("dflash_config"), config.pop("block_size")
    config.pop("architectures")
    made = {
        "architectures": ["DFlashSpeculator"],
        "speculators_model_type": "dflash",
        "speculators_config": {"algorithm": "dflash", "proposal_methods": []},
        "transformer_layer_config": config,
        "draft_vocab_size": own,
        "block_size": block_size,
        "mask_token_id": dflash["mask_token_id"],
        "aux_hidden_state_layer_ids": [each + 1 for each in dflash["target_layer_ids"]],
        "projector_type": "dflash",
        "sample_from_anchor": False,
        **more,
    }
    return save(directory, made, tensors)
