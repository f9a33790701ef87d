"""A drafter's beginning, from parts of its model, and its files as EAGLE-3 is published."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.draft_head.head import EPS, Head, Sizes

FIRST_SCALE = 0.3


@torch.no_grad()
def begin_head(model: Any, layers: Sequence[int], own: Tensor) -> Head:
    """Return a drafter for a model: its head is the model's own, for the drafter's tokens.

    Its layer is random: in one trial of 16 small steps, one that began with weights of the model's
    layers had learned less.
    """
    config, hidden = model.config, model.config.hidden_size
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    sizes = Sizes(
        hidden=hidden,
        ffn=config.intermediate_size,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=config.head_dim or hidden // heads,
        num_layers_read=len(layers),
        vocabulary=len(own),
        rope_theta=config.rope_parameters["rope_theta"],
    )
    torch.manual_seed(0)
    head = Head(sizes)
    # A direction that is not learned yet would score a few tokens far above all others.
    head.norm.weight.copy_(FIRST_SCALE * model.model.norm.weight)
    head.lm_head.weight.copy_(model.get_output_embeddings().weight[own])
    return head


def write_head(head: Head, own: Tensor, layers: Sequence[int], model: Any, directory: Path) -> None:
    """Write a drafter's directory, with weights in bf16."""
    directory.mkdir(parents=True, exist_ok=True)
    sizes, vocabulary = head.sizes, model.config.vocab_size
    is_proposed = torch.zeros(vocabulary, dtype=torch.bool)
    is_proposed[own] = True
    tensors = {
        name: value.detach().bfloat16().contiguous() for name, value in head.state_dict().items()
    }
    tensors |= {"d2t": own - torch.arange(len(own)), "t2d": is_proposed}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.ffn,
        "num_hidden_layers": 1,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": EPS,
        "rope_theta": sizes.rope_theta,
        "max_position_embeddings": model.config.max_position_embeddings,
        "vocab_size": vocabulary,
        "draft_vocab_size": len(own),
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": list(layers),
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (directory / "config.json").write_text(json.dumps(config, indent=1))
