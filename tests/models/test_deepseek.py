"""DeepSeek V2 and V3 against the reference implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DeepseekV2Config, DeepseekV3Config, PretrainedConfig

from octavo.backends.native.backend import NativeBackend, NativeOptions
from octavo.backends.native.footprint import NativeFootprint
from octavo.loader import resolve
from octavo.models.build import bind
from octavo.models.config_reader import Config, ConfigurationError
from octavo.models.deepseek import DeepSeek
from octavo.models.footprint import tensor_sizes
from octavo.models.kv_layout import place_layers
from octavo.models.load import open_model
from tests.models import small
from tests.models.compare import compare

SMALL: dict[str, Any] = {
    **{key: value for key, value in small.SMALL.items() if key != "num_key_value_heads"},
    "kv_lora_rank": 32,
    "q_lora_rank": None,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 24,
    "moe_intermediate_size": 24,
    "num_experts_per_tok": 3,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
}
GROUPS: dict[str, Any] = {"n_group": 4, "topk_group": 2}
QUERIES: dict[str, Any] = {"q_lora_rank": 40}
STRETCHED: dict[str, Any] = {**small.YARN, "mscale": 0.707, "mscale_all_dim": 0.707}
SHARPENED: dict[str, Any] = {**small.YARN, "mscale": 1.0, "mscale_all_dim": 0.5}
CASES: dict[str, PretrainedConfig] = {
    "v2 lite": DeepseekV2Config(**SMALL),
    "v2, queries of low rank, groups": DeepseekV2Config(
        **{**SMALL, **QUERIES}, **GROUPS, topk_method="group_limited_greedy"
    ),
    "v2, stretched, biases, tied": DeepseekV2Config(
        **SMALL, rope_parameters=STRETCHED, attention_bias=True, tie_word_embeddings=True
    ),
    "v3": DeepseekV3Config(**{**SMALL, **QUERIES}, **GROUPS),
    "v3, sharpened, biases": DeepseekV3Config(
        **{**SMALL, **QUERIES}, **GROUPS, rope_parameters=SHARPENED, attention_bias=True
    ),
    "v3, halves turn, weights as they are": DeepseekV3Config(
        **SMALL, **GROUPS, rope_interleave=False, norm_topk_prob=False
    ),
    "kimi k2, a group": DeepseekV3Config(
        **{**SMALL, **QUERIES, "n_shared_experts": 1}, n_group=1, topk_group=1
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_and_text_match_the_reference(name: str, tmp_path: Path) -> None:
    """Logits agree within fp32 rounding, the text is equal, and chunks have the same bits."""
    compare(CASES[name], tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_group": 3}, "n_group 3 and config: topk_group 2 do not fit 8 experts"),
        ({"topk_group": 5}, "topk_group 5 do not fit"),
        ({"topk_group": 1}, "of which a token passes 3"),
        ({"topk_method": "random"}, "topk_method"),
        ({"scoring_func": "relu"}, "scoring_func"),
        ({"moe_layer_freq": 2}, "moe_layer_freq must be 1, is 2"),
        ({"num_experts_per_tok": 9}, "must be at most 8"),
        ({"kv_lora_rank": 0}, "kv_lora_rank must be above 0"),
    ],
)
def test_unsupported_options_are_refused(change: dict[str, Any], message: str) -> None:
    values = json.loads(CASES["v3"].to_json_string(use_diff=False))
    values["architectures"] = ["DeepseekV3ForCausalLM"]
    with pytest.raises(ConfigurationError, match=message):
        DeepSeek.read(Config({**values, **change}))


def test_v2_with_normalised_weights_is_refused() -> None:
    """The reference reads such a model as if its weights were not normalised, others do not."""
    values = json.loads(CASES["v2 lite"].to_json_string(use_diff=False))
    values["architectures"] = ["DeepseekV2ForCausalLM"]
    assert values["norm_topk_prob"] is False
    DeepSeek.read(Config(values))
    with pytest.raises(ConfigurationError, match="norm_topk_prob true is not supported"):
        DeepSeek.read(Config({**values, "norm_topk_prob": True}))


def test_weights_of_16_bits_keep_their_type(tmp_path: Path) -> None:
    """The matrices of keys are turned, and are none the larger for it."""
    auto: Any = AutoModelForCausalLM
    auto.from_config(CASES["v3"], dtype=torch.bfloat16).save_pretrained(tmp_path)
    opened = open_model(resolve(str(tmp_path)))
    sizes = {tensor.type for tensor in tensor_sizes(opened) if tensor.is_matrix}
    assert sizes == {"BF16"}
    backend = NativeBackend(NativeOptions(num_threads=1))
    bind(opened.model, backend, opened.weights)
    backend.prepare(opened.model, place_layers(opened.model), 16)
    footprint = NativeFootprint("auto", "bfloat16")
    expected = sum(map(footprint.weight_bytes, tensor_sizes(opened)))
    assert backend.weight_bytes == pytest.approx(expected, rel=0.01)  # vectors are aligned
    of_heads = [i.experts for i in backend.instructions if i.op == "HeadGemm"]
    assert {each.matrices[0].formats for each in of_heads if each is not None} == {"BF16"}
