"""Synthetic files of drafters that read hidden states, in the layouts that are published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.api.tiny import SIZES

Tensors = dict[str, np.ndarray]

HIDDEN, FFN, HEAD_DIM, VOCABULARY = 32, 48, 8, 300  # of the tiny model
NUM_DRAFTED = 220  # tokens of a drafter's own vocabulary
LAYERS = (0, 1)  # of the tiny model, whose inputs are read


def config_of(**own: Any) -> dict[str, Any]:
    """Return a drafter's configuration, in the sizes of the tiny model."""
    return {**SIZES, "num_hidden_layers": 1, "hidden_act": "silu", "rope_theta": 10_000.0, **own}


def save(
    directory: Path, config: dict[str, Any], tensors: Tensors, name: str = "model.safetensors"
) -> Path:
    """Write a drafter's directory."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / name)
    return directory


def load(directory: Path, name: str = "model.safetensors") -> tuple[dict[str, Any], Tensors]:
    """Return the configuration and the tensors of a directory."""
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return config, load_file(directory / name)


def matrices(generator: np.random.Generator, shapes: dict[str, tuple[int, int]]) -> Tensors:
    return {
        f"{name}.weight": (generator.standard_normal(shape) * 1.5 / shape[1] ** 0.5).astype(
            np.float32
        )
        for name, shape in shapes.items()
    }


def norms(generator: np.random.Generator, *names: str) -> Tensors:
    return {
        f"{name}.weight": (1 + 0.2 * generator.standard_normal(HIDDEN)).astype(np.float32)
        for name in names
    }


def layer_shapes(
    prefix: str, inputs: int, kv_heads: int = 2, ffn: int = FFN
) -> dict[str, tuple[int, int]]:
    return {
        f"{prefix}.self_attn.q_proj": (HIDDEN, inputs),
        f"{prefix}.self_attn.k_proj": (kv_heads * HEAD_DIM, inputs),
        f"{prefix}.self_attn.v_proj": (kv_heads * HEAD_DIM, inputs),
        f"{prefix}.self_attn.o_proj": (HIDDEN, HIDDEN),
        f"{prefix}.mlp.gate_proj": (ffn, HIDDEN),
        f"{prefix}.mlp.up_proj": (ffn, HIDDEN),
        f"{prefix}.mlp.down_proj": (HIDDEN, ffn),
    }


def make_eagle3(
    directory: Path, *, layer: str = "midlayer", own: int = NUM_DRAFTED, kv_heads: int = 2
) -> Path:
    """Write an EAGLE-3 drafter for the tiny model, with a vocabulary of its own."""
    generator = np.random.default_rng(17)
    shapes = {
        **layer_shapes(layer, 2 * HIDDEN, kv_heads),
        "fc": (HIDDEN, len(LAYERS) * HIDDEN),
        "lm_head": (own, HIDDEN),
    }
    tensors = matrices(generator, shapes) | norms(
        generator,
        *(f"{layer}.{name}" for name in ("input_layernorm", "hidden_norm")),
        f"{layer}.post_attention_layernorm",
        "norm",
    )
    tokens = np.sort(generator.permutation(VOCABULARY)[:own])
    mask = np.zeros(VOCABULARY, bool)
    mask[tokens] = True
    tensors |= {"d2t": tokens - np.arange(own), "t2d": mask}
    config = config_of(
        architectures=["LlamaForCausalLMEagle3"],
        num_key_value_heads=kv_heads,
        draft_vocab_size=own,
        eagle_aux_hidden_state_layer_ids=list(LAYERS),
    )
    return save(directory, config, tensors)


def as_speculators(directory: Path, **own: Any) -> Path:
    """Rewrite an EAGLE-3 drafter in the form of the library speculators."""
    config, tensors = load(directory)
    above = ("architectures", "draft_vocab_size", "eagle_aux_hidden_state_layer_ids")
    made = {key: config.pop(key) for key in above}
    made |= {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {"algorithm": "eagle3", "proposal_methods": []},
        "transformer_layer_config": {**config, "model_type": "llama"},
        **own,
    }
    renamed = {name.replace("midlayer.", "layers.0."): each for name, each in tensors.items()}
    return save(directory, made, renamed)


def make_eagle(
    directory: Path, *, bias: bool = True, embeds: bool = False, scale: float = 1.0
) -> Path:
    """Write an EAGLE drafter for the tiny model, whose head and embedding it uses.

    With a small scale its scores are nearly even, so that the noise of a draw decides.
    """
    generator = np.random.default_rng(23)
    shapes = {**layer_shapes("layers.0", HIDDEN), "fc": (HIDDEN, 2 * HIDDEN)}
    if embeds:
        shapes["embed_tokens"] = (VOCABULARY, HIDDEN)
    tensors = matrices(generator, shapes)
    tensors |= norms(generator, "layers.0.post_attention_layernorm")
    tensors["fc.weight"] *= np.float32(scale)
    tensors["layers.0.self_attn.o_proj.weight"] *= np.float32(scale)
    tensors["layers.0.mlp.down_proj.weight"] *= np.float32(scale)
    if bias:
        tensors["fc.bias"] = generator.standard_normal(HIDDEN).astype(np.float32)
    return save(directory, config_of(architectures=["LlamaForCausalLM"], bias=bias), tensors)


def add_layers(directory: Path, count: int) -> Path:
    """Add layers behind the first one of a drafter, up to so many."""
    generator = np.random.default_rng(41)
    config, tensors = load(directory)
    for number in range(1, count):
        prefix = f"layers.{number}"
        tensors |= matrices(generator, layer_shapes(prefix, HIDDEN))
        names = ("input_layernorm", "post_attention_layernorm")
        tensors |= norms(generator, *[f"{prefix}.{name}" for name in names])
    return save(directory, {**config, "num_hidden_layers": count}, tensors)
