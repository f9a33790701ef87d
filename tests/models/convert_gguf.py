"""Conversion of a checkpoint directory to GGUF as llama.cpp's converter does it, for tests.

Names come from the gguf package's own map, so that ours are checked against a second source.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from tests.loader.make_files import ARRAY, BOOL, F32, I32, STRING, U32, f32_tensor, write_gguf

Array = NDArray[np.float32]
Tensors = dict[str, Array]
Pairs = list[tuple[str, int, Any]]

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "MixtralForCausalLM": "llama",
    "SmolLM3ForCausalLM": "smollm3",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2MoeForCausalLM": "qwen2moe",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Phi3ForCausalLM": "phi3",
    "Olmo2ForCausalLM": "olmo2",
    "OlmoeForCausalLM": "olmoe",
    "GraniteForCausalLM": "granite",
    "CohereForCausalLM": "command-r",
    "Cohere2ForCausalLM": "cohere2",
    "Glm4ForCausalLM": "glm4",
    "GPT2LMHeadModel": "gpt2",
    "GPTNeoXForCausalLM": "gptneox",
    "StableLmForCausalLM": "stablelm",
    "FalconForCausalLM": "falcon",
    "GptOssForCausalLM": "gpt-oss",
    "DeepseekV2ForCausalLM": "deepseek2",
    "DeepseekV3ForCausalLM": "deepseek2",
    "Lfm2ForCausalLM": "lfm2",
}
PAIRED = ("llama", "smollm3", "granite")

# The keys of config.json for each GGUF key; the first that is present applies.
INTEGERS = {
    "context_length": ("max_position_embeddings", "n_positions"),
    "embedding_length": ("hidden_size", "n_embd"),
    "block_count": ("num_hidden_layers", "n_layer"),
    "feed_forward_length": ("intermediate_size", "n_inner", "ffn_hidden_size"),
    "attention.head_count": ("num_attention_heads", "n_head"),
    "attention.head_count_kv": ("num_kv_heads", "num_key_value_heads"),
    "attention.key_length": ("head_dim",),
    "attention.value_length": ("head_dim",),
    "expert_count": ("num_local_experts", "num_experts", "n_routed_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
}
NUMBERS = {
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon"),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "attention.scale": ("attention_multiplier",),
    "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",),
    "logit_scale": ("logits_scaling", "logit_scale"),
}
WITH_WINDOWS = ("gemma2", "gemma3", "cohere2", "gpt-oss", "phi3")


def convert(directory: Path, path: Path) -> Path:
    """Write the safetensors and config.json of `directory` as one GGUF file of float32."""
    config = json.loads((directory / "config.json").read_text())
    architecture = ARCHITECTURES[config["architectures"][0]]
    if architecture == "falcon" and not config["new_decoder_architecture"]:
        config["num_kv_heads"] = 1 if config["multi_query"] else config["num_attention_heads"]
    if architecture == "deepseek2":
        config["num_kv_heads"] = 1
    tensors = {
        name: array.astype(np.float32)
        for name, array in load_file(directory / "model.safetensors").items()
    }
    if config.get("tie_word_embeddings", False):
        tensors.pop("lm_head.weight", None)
    blocks = _first(config, INTEGERS["block_count"])
    names = gguf.get_tensor_name_map(_model_arch(architecture), blocks)
    stored = {}
    for name, array in _changed(architecture, config, tensors):
        mapped = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert mapped is not None, f"{architecture}: gguf has no name for {name}"
        stored[mapped] = array
    stored.update(_rope_tensors(architecture, config))
    pairs = [
        *_pairs(architecture, config),
        *_rope_pairs(architecture, config),
        *_vocabulary(config),
    ]
    return write_gguf(path, pairs, [f32_tensor(name, array) for name, array in stored.items()])


def _model_arch(architecture: str) -> gguf.MODEL_ARCH:
    return next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)


def _first(config: dict[str, Any], keys: tuple[str, ...]) -> Any:
    return next((config[key] for key in keys if config.get(key) is not None), None)


# metadata


def _pairs(architecture: str, config: dict[str, Any]) -> Pairs:
    pairs: Pairs = [("general.architecture", STRING, architecture)]
    for kind, table in ((U32, INTEGERS), (F32, NUMBERS)):
        for key, names in table.items():
            value = _first(config, names)
            if value is not None:
                pairs.append((f"{architecture}.{key}", kind, value))
    if architecture == "gpt2" and config.get("n_inner") is None:
        pairs.append(("gpt2.feed_forward_length", U32, 4 * config["n_embd"]))
    if architecture == "falcon":
        pairs.append(("falcon.context_length", U32, 2048))
        pairs = [pair for at, pair in enumerate(pairs) if pair[0] not in {p[0] for p in pairs[:at]}]
    if architecture in WITH_WINDOWS:
        window = config.get("sliding_window") or 0
        pairs.append((f"{architecture}.attention.sliding_window", U32, window))
    if architecture in ("gptneox", "stablelm"):
        parallel = config["use_parallel_residual"]
        pairs.append((f"{architecture}.use_parallel_residual", BOOL, parallel))
    if architecture == "deepseek2":
        pairs = [pair for pair in pairs if pair[0] not in _latent_keys(config)]
        pairs += [(key, *pair) for key, pair in _latent_keys(config).items()]
    if architecture == "lfm2":
        # Blocks that convolve have no KV heads.
        kinds, kv_heads = config["layer_types"], config["num_key_value_heads"]
        counts = [kv_heads if kind == "full_attention" else 0 for kind in kinds]
        pairs = [pair for pair in pairs if pair[0] != "lfm2.attention.head_count_kv"]
        pairs.append(("lfm2.attention.head_count_kv", ARRAY, (I32, counts)))
        pairs.append(("lfm2.shortconv.l_cache", U32, config["conv_L_cache"]))
    if architecture == "gpt-oss":
        pairs.append(("gpt-oss.expert_feed_forward_length", U32, config["intermediate_size"]))
    return pairs


def _is_absorbed(config: dict[str, Any]) -> bool:
    """Return whether the keys' matrices are turned, as in newer files."""
    return config["q_lora_rank"] is not None


def _latent_keys(config: dict[str, Any]) -> dict[str, tuple[int, Any]]:
    """Return what the converter writes for latent attention and its experts."""
    rank, turning = config["kv_lora_rank"], config["qk_rope_head_dim"]
    width, value = turning + config["qk_nope_head_dim"], config["v_head_dim"]
    is_v3 = config["architectures"][0] == "DeepseekV3ForCausalLM"
    said: dict[str, tuple[int, Any]] = {
        "attention.key_length": (U32, width),
        "attention.value_length": (U32, value),
        "attention.kv_lora_rank": (U32, rank),
        "leading_dense_block_count": (U32, config["first_k_dense_replace"]),
        "expert_shared_count": (U32, config["n_shared_experts"]),
        "expert_weights_scale": (F32, config["routed_scaling_factor"]),
        "expert_gating_func": (U32, 2 if is_v3 else 1),
    }
    if _is_absorbed(config):
        said |= {
            "attention.key_length": (U32, rank + turning),
            "attention.value_length": (U32, rank),
            "attention.key_length_mla": (U32, width),
            "attention.value_length_mla": (U32, value),
            "attention.q_lora_rank": (U32, config["q_lora_rank"]),
        }
    if config["norm_topk_prob"]:
        said["expert_weights_norm"] = (BOOL, True)
    if (config["n_group"] or 1) > 1:
        said["expert_group_count"] = (U32, config["n_group"])
        said["expert_group_used_count"] = (U32, config["topk_group"])
    over = _rope(config).get("mscale_all_dim")
    if over is not None:
        said["rope.scaling.yarn_log_multiplier"] = (F32, 0.1 * over)
    return {f"deepseek2.{key}": pair for key, pair in said.items()}


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    rope = config.get("rope_parameters") or {}
    return rope.get("full_attention", rope)


def _head_dim(config: dict[str, Any]) -> int:
    heads = _first(config, INTEGERS["attention.head_count"])
    return config.get("head_dim") or _first(config, INTEGERS["embedding_length"]) // heads


def _rope_pairs(architecture: str, config: dict[str, Any]) -> Pairs:
    rope = _rope(config)
    if not rope:
        return []
    said: Pairs = []
    if architecture not in ("gptneox", "stablelm", "falcon"):
        said.append(("freq_base", F32, rope["rope_theta"]))
    near = config["rope_parameters"].get("sliding_attention", {}).get("rope_theta")
    if near is not None:
        said.append(("freq_base_swa", F32, near))
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    said.append(("dimension_count", U32, int(share * _head_dim(config))))
    kind = rope.get("rope_type")
    original: Any = 0
    if kind in ("linear", "yarn"):
        said += [("scaling.type", STRING, kind), ("scaling.factor", F32, rope["factor"])]
    if kind in ("yarn", "longrope"):
        original = rope.get(
            "original_max_position_embeddings", config.get("original_max_position_embeddings")
        )
        said.append(("scaling.original_context_length", U32, original))
    if kind == "longrope":
        scale = config["max_position_embeddings"] / original
        factor = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
        said.append(("scaling.attn_factor", F32, factor))
    for key in ("beta_fast", "beta_slow"):
        if kind == "yarn" and rope.get(key) is not None:
            said.append((f"scaling.yarn_{key}", F32, rope[key]))
    return [(f"{architecture}.rope.{key}", code, value) for key, code, value in said]


def _rope_tensors(architecture: str, config: dict[str, Any]) -> Tensors:
    rope = _rope(config)
    kind = rope.get("rope_type")
    if kind == "longrope":
        return {
            f"rope_factors_{length}.weight": np.array(rope[f"{length}_factor"], np.float32)
            for length in ("long", "short")
        }
    if kind != "llama3":
        return {}
    dim, divisors = _head_dim(config), []
    for index in range(0, dim, 2):
        turns = rope["original_max_position_embeddings"] / (
            2 * math.pi * rope["rope_theta"] ** (index / dim)
        )
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        share = min(1.0, max(0.0, (turns - low) / (high - low)))
        divisors.append(1 / (share + (1 - share) / rope["factor"]))
    return {"rope_freqs.weight": np.array(divisors, np.float32)}


def _vocabulary(config: dict[str, Any]) -> Pairs:
    """Return the smallest vocabulary that other readers of the file accept."""
    tokens = [f"t{number}" for number in range(config["vocab_size"])]
    return [
        ("tokenizer.ggml.model", STRING, "gpt2"),
        ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
        ("tokenizer.ggml.token_type", ARRAY, (I32, [1] * len(tokens))),
        ("tokenizer.ggml.merges", ARRAY, (STRING, ["t 1"])),
        ("tokenizer.ggml.bos_token_id", U32, 1),
        ("tokenizer.ggml.eos_token_id", U32, 2),
        ("tokenizer.ggml.eot_token_id", U32, 3),
    ]


# tensors


def _changed(
    architecture: str, config: dict[str, Any], tensors: Tensors
) -> Iterator[tuple[str, Array]]:
    change = _CHANGES.get(architecture, _as_it_is)
    if architecture == "deepseek2":
        change = partial(_latent, config["qk_nope_head_dim"], _is_absorbed(config))
    heads = _first(config, INTEGERS["attention.head_count"])
    kv_heads = _first(config, INTEGERS["attention.head_count_kv"]) or heads
    for name, array in _stacked(tensors).items():
        yield from change(name, array, heads, kv_heads)


def _stacked(tensors: Tensors) -> Tensors:
    """Stack the tensors of experts, and those of norms by head."""
    found: dict[str, dict[int, Array]] = {}
    for name, array in tensors.items():
        match = re.fullmatch(r"(.+\.(?:experts|norms))\.(\d+)(\..+)", name)
        if match is None:
            found[name] = {0: array[None]}
            continue
        stem = match[1].removesuffix(".norms")
        if "block_sparse_moe" in stem:
            stem = stem.replace("model.", "").replace("block_sparse_moe", "feed_forward")
        found.setdefault(stem + match[3], {})[int(match[2])] = array
    return {
        name: parts[0][0] if len(parts) == 1 else np.stack([parts[n] for n in range(len(parts))])
        for name, parts in found.items()
    }


def _as_it_is(name: str, array: Array, heads: int, kv_heads: int) -> Iterator[tuple[str, Array]]:
    yield name, array


def _paired(name: str, array: Array, heads: int, kv_heads: int) -> Iterator[tuple[str, Array]]:
    """Interleave the rows of each head's first half with those of its second half."""
    for part, count in ((".q_proj.", heads), (".k_proj.", kv_heads)):
        if part in name:
            half = len(array) // count // 2
            order = [
                head * 2 * half + side * half + row
                for head in range(count)
                for row in range(half)
                for side in (0, 1)
            ]
            array = array[order]
    yield name, array


def _plus_one(name: str, array: Array, heads: int, kv_heads: int) -> Iterator[tuple[str, Array]]:
    yield name, array + np.float32(1) if name.endswith("norm.weight") else array


def _transposed(name: str, array: Array, heads: int, kv_heads: int) -> Iterator[tuple[str, Array]]:
    is_matrix = re.search(r"\.(c_attn|c_proj|c_fc)\.weight$", name)
    yield name, np.ascontiguousarray(array.T) if is_matrix else array


def _sorted_rows(name: str, array: Array, heads: int, kv_heads: int) -> Iterator[tuple[str, Array]]:
    """Sort rows from groups of (queries, key, value) into all queries, all keys, all values."""
    if "query_key_value" in name:
        share = heads // kv_heads
        dim = len(array) // (heads + 2 * kv_heads)
        kinds: list[list[Array]] = [[], [], []]
        for at in range(len(array) // dim):
            place = at % (share + 2)
            kinds[max(0, place - share + 1)].append(array[at * dim : (at + 1) * dim])
        array = np.concatenate([part for kind in kinds for part in kind])
    yield name, array


def _gpt_oss(name: str, array: Array, heads: int, kv_heads: int) -> Iterator[tuple[str, Array]]:
    if name.endswith("sinks"):
        yield f"{name}.weight", array
    elif "gate_up_proj" in name:
        stem = name[: name.index("gate_up_proj")]
        is_bias = name.endswith("_bias")
        whole = array if is_bias else array.swapaxes(1, 2)
        for side, part in enumerate(("gate_proj", "up_proj")):
            suffix = ".bias" if is_bias else ".weight"
            yield stem + part + suffix, np.ascontiguousarray(whole[:, side::2])
    elif name.endswith("experts.down_proj"):
        yield f"{name}.weight", np.ascontiguousarray(array.swapaxes(1, 2))
    elif name.endswith("experts.down_proj_bias"):
        yield name.replace("_bias", ".bias"), array
    else:
        yield name, array


def _latent(
    still: int, is_absorbed: bool, name: str, array: Array, heads: int, kv_heads: int
) -> Iterator[tuple[str, Array]]:
    """Divide the matrices of keys and values, and turn those of keys."""
    if name.endswith("e_score_correction_bias"):
        yield name.replace("_bias", ".bias"), array
    elif is_absorbed and "kv_b_proj" in name:
        keys, values = np.split(array.reshape(heads, -1, array.shape[-1]), [still], axis=1)
        yield name.replace("kv_b", "k_b"), np.ascontiguousarray(keys.swapaxes(1, 2))
        yield name.replace("kv_b", "v_b"), values
    else:
        yield name, array


def _squeezed(name: str, array: Array, heads: int, kv_heads: int) -> Iterator[tuple[str, Array]]:
    yield name, array.squeeze(1) if name.endswith("conv.conv.weight") else array


_CHANGES: dict[str, Callable[..., Iterator[tuple[str, Array]]]] = {
    **dict.fromkeys(PAIRED, _paired),
    **dict.fromkeys(("gemma", "gemma2", "gemma3"), _plus_one),
    **dict.fromkeys(("gptneox", "falcon"), _sorted_rows),
    "gpt2": _transposed,
    "lfm2": _squeezed,
    "gpt-oss": _gpt_oss,
}
