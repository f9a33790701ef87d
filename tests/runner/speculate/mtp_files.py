"""Synthetic models whose files have a layer for drafts, in the layouts that are published."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.api.tiny import make_model, make_tokenizer_files
from tests.runner.speculate.head_files import (
    HIDDEN,
    Tensors,
    config_of,
    layer_shapes,
    load,
    matrices,
    norms,
    save,
)

MIMO_LAYER = "model.mtp_layers.0"
DEEPSEEK_LAYER = "model.layers.2"


def add_mimo_layer(directory: Path, *, bias: float = 0.2) -> Path:
    """Turn the tiny model into one of MiMo's kind, with its biases and a layer for drafts."""
    generator = np.random.default_rng(31)
    config, tensors = load(directory)
    for name in [*tensors]:
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            added = bias * generator.standard_normal(len(tensors[name]))
            tensors[name.removesuffix("weight") + "bias"] = added.astype(np.float32)
    config |= {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    shapes = {
        **layer_shapes(MIMO_LAYER, HIDDEN),
        f"{MIMO_LAYER}.input_proj": (HIDDEN, 2 * HIDDEN),
    }
    tensors |= matrices(generator, shapes)
    for name in ("q_proj", "k_proj", "v_proj"):
        rows = len(tensors[f"{MIMO_LAYER}.self_attn.{name}.weight"])
        tensors[f"{MIMO_LAYER}.self_attn.{name}.bias"] = generator.standard_normal(rows, np.float32)
    of_block = ("input_layernorm", "post_attention_layernorm")
    own = ("token_layernorm", "hidden_layernorm", "final_layernorm")
    tensors |= norms(generator, *[f"{MIMO_LAYER}.{name}" for name in (*of_block, *own)])
    return save(directory, config, tensors)


def make_mimo(directory: Path) -> Path:
    """Write a tiny model of MiMo's kind."""
    return add_mimo_layer(make_model(directory))


def make_deepseek(directory: Path) -> Path:
    """Write a tiny model of DeepSeek V3's kind: a dense block, one of experts, and one for drafts.

    As published, the files have the embedding and the head a second time.
    """
    make_tokenizer_files(directory)
    generator = np.random.default_rng(37)
    config = config_of(
        architectures=["DeepseekV3ForCausalLM"],
        model_type="deepseek_v3",
        num_hidden_layers=2,
        num_key_value_heads=4,
        num_nextn_predict_layers=1,
        first_k_dense_replace=1,
        kv_lora_rank=16,
        q_lora_rank=24,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        moe_intermediate_size=16,
        n_routed_experts=4,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        norm_topk_prob=True,
        routed_scaling_factor=1.5,
        scoring_func="sigmoid",
        topk_method="noaux_tc",
        eos_token_id=1,
        bos_token_id=0,
    )
    vocabulary = config["vocab_size"]
    shapes = {
        "model.embed_tokens": (vocabulary, HIDDEN),
        "lm_head": (vocabulary, HIDDEN),
        f"{DEEPSEEK_LAYER}.eh_proj": (HIDDEN, 2 * HIDDEN),
    }
    named = ["model.norm", f"{DEEPSEEK_LAYER}.shared_head.norm"]
    named += [f"{DEEPSEEK_LAYER}.{name}" for name in ("enorm", "hnorm")]
    tensors: Tensors = {}
    for layer in range(3):
        prefix = f"model.layers.{layer}"
        shapes |= _latent_shapes(prefix) | (_expert_shapes(prefix) if layer else _dense(prefix))
        named += [f"{prefix}.{name}" for name in ("input_layernorm", "post_attention_layernorm")]
        for name, size in (("q_a", 24), ("kv_a", 16)):
            key = f"{prefix}.self_attn.{name}_layernorm.weight"
            tensors[key] = np.ones(size, np.float32)
        if layer:
            key = f"{prefix}.mlp.gate.e_score_correction_bias"
            tensors[key] = 0.1 * generator.standard_normal(4, np.float32)
    tensors |= matrices(generator, shapes) | norms(generator, *named)
    tensors[f"{DEEPSEEK_LAYER}.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].copy()
    tensors[f"{DEEPSEEK_LAYER}.shared_head.head.weight"] = tensors["lm_head.weight"].copy()
    return save(directory, config, tensors)


def in_fp8(directory: Path) -> Path:
    """Rewrite a model of DeepSeek's kind as it is published: in FP8, with a scale for a block."""
    import torch
    from safetensors.torch import load_file, save_file

    path, made = directory / "model.safetensors", {}
    for name, matrix in load_file(path).items():
        is_in_block = ".self_attn." in name or ".mlp." in name
        if is_in_block and matrix.ndim == 2 and not name.endswith("mlp.gate.weight"):
            matrix = matrix.to(torch.float8_e4m3fn)
            made[f"{name}_scale_inv"] = torch.full((1, 1), 1.0)
        made[name] = matrix
    save_file(made, path)
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def _latent_shapes(prefix: str) -> dict[str, tuple[int, int]]:
    return {
        f"{prefix}.self_attn.q_a_proj": (24, HIDDEN),
        f"{prefix}.self_attn.q_b_proj": (4 * 16, 24),
        f"{prefix}.self_attn.kv_a_proj_with_mqa": (16 + 8, HIDDEN),
        f"{prefix}.self_attn.kv_b_proj": (4 * 16, 16),
        f"{prefix}.self_attn.o_proj": (HIDDEN, 4 * 8),
    }


def _dense(prefix: str) -> dict[str, tuple[int, int]]:
    return {name: each for name, each in layer_shapes(prefix, HIDDEN).items() if ".mlp." in name}


def _expert_shapes(prefix: str) -> dict[str, tuple[int, int]]:
    shapes = {f"{prefix}.mlp.gate": (4, HIDDEN)}
    for expert in (*[f"experts.{number}" for number in range(4)], "shared_experts"):
        shapes |= {
            f"{prefix}.mlp.{expert}.gate_proj": (16, HIDDEN),
            f"{prefix}.mlp.{expert}.up_proj": (16, HIDDEN),
            f"{prefix}.mlp.{expert}.down_proj": (HIDDEN, 16),
        }
    return shapes
