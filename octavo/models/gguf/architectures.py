"""The GGUF architectures: the names of their metadata, and values that the metadata lacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field

from octavo.loader.errors import UnsupportedFormatError
from octavo.models.gguf.keys import GgufKeys
from octavo.models.gguf.rope import partial_rotation

Values = dict[str, Any]


class Architecture(Struct, frozen=True):
    """The rules that turn one architecture's metadata into a config.json."""

    name: str  # in config.json's `architectures`
    fixed: Mapping[str, Any] = field(default_factory=dict)  # the same for every model
    integers: Mapping[str, str] = field(default_factory=dict)  # GGUF's key → config.json's
    numbers: Mapping[str, str] = field(default_factory=dict)
    by_block: tuple[str, ...] = ()  # keys of counts that may differ, which `derive` reads
    derive: Callable[[GgufKeys, Values], Values] | None = None


def _layer_types(keys: GgufKeys, layers: int, period: int, full_at: int) -> list[str]:
    """Return the layers' kinds: one in `period` is full, with `full_at` as the remainder."""
    pattern = keys.pattern("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        slides = pattern
    else:
        every = pattern or period
        slides = [layer % every != full_at % every for layer in range(layers)]
    return ["sliding_attention" if slide else "full_attention" for slide in slides]


def _llama(keys: GgufKeys, values: Values) -> Values:
    derived: Values = {
        "attention_bias": keys.has_tensor("blk.0.attn_q.bias"),
        "mlp_bias": keys.has_tensor("blk.0.ffn_up.bias"),
    }
    if keys.whole("expert_count", 0):
        derived["architectures"] = ["MixtralForCausalLM"]
        derived["num_local_experts"] = keys.whole("expert_count")
    return derived


def _smollm3(keys: GgufKeys, values: Values) -> Values:
    layers = range(values["num_hidden_layers"])
    return {"no_rope_layers": [int((layer + 1) % 4 != 0) for layer in layers]}


def _experts(keys: GgufKeys, values: Values) -> Values:
    """Read the sizes of experts, in older files from tensor shapes, and the layers without any."""
    layers = range(values["num_hidden_layers"])
    derived: Values = {
        "mlp_only_layers": [n for n in layers if keys.has_tensor(f"blk.{n}.ffn_gate.weight")]
    }
    for stored, key, tensor, axis in (
        ("expert_feed_forward_length", "moe_intermediate_size", "ffn_gate_exps", 1),
        (
            "expert_shared_feed_forward_length",
            "shared_expert_intermediate_size",
            "ffn_gate_shexp",
            0,
        ),
    ):
        name = f"blk.0.{tensor}.weight"
        if keys.has(stored):
            derived[key] = keys.whole(stored)
        elif keys.has_tensor(name):
            derived[key] = keys.rows(name, axis)
    if keys.has("expert_weights_norm"):
        derived["norm_topk_prob"] = keys.flag("expert_weights_norm", False)
    return derived


def _gemma2(keys: GgufKeys, values: Values) -> Values:
    layers = values["num_hidden_layers"]
    return {
        "query_pre_attn_scalar": _gemma_scalar(values, largest=46),
        "layer_types": _layer_types(keys, layers, period=2, full_at=1),
    }


def _gemma3(keys: GgufKeys, values: Values) -> Values:
    layers = values["num_hidden_layers"]
    near = {"rope_type": "default", "rope_theta": keys.number("rope.freq_base_swa", 10_000.0)}
    far = {**values["rope_parameters"]}
    if not keys.has("rope.freq_base"):
        far["rope_theta"] = 1_000_000.0
    return {
        "query_pre_attn_scalar": _gemma_scalar(values, largest=62),
        "layer_types": _layer_types(keys, layers, period=6, full_at=5),
        "rope_parameters": {"full_attention": far, "sliding_attention": near},
    }


def _gemma_scalar(values: Values, largest: int) -> int:
    """Return the number by whose root scores are divided: the head size, except in the 27B model.

    The number of layers shows which model it is, since the file does not state the number.
    """
    if values["num_hidden_layers"] == largest:
        return int(values["hidden_size"]) // int(values["num_attention_heads"])
    return _head_dim(values)


def _phi3(keys: GgufKeys, values: Values) -> Values:
    derived = partial_rotation(keys, _head_dim(values))
    if keys.has("rope.scaling.original_context_length"):
        length = keys.whole("rope.scaling.original_context_length")
        derived["original_max_position_embeddings"] = length
    return derived


def _partial(keys: GgufKeys, values: Values) -> Values:
    return partial_rotation(keys, _head_dim(values))


def _head_dim(values: Values) -> int:
    heads = max(1, values["num_attention_heads"])
    return int(values.get("head_dim", values["hidden_size"] // heads))


def _olmo2(keys: GgufKeys, values: Values) -> Values:
    """Detect Olmo 3, which is Olmo 2 with windows."""
    if not keys.has("attention.sliding_window_pattern"):
        return {}
    layers = values["num_hidden_layers"]
    return {
        "architectures": ["Olmo3ForCausalLM"],
        "layer_types": _layer_types(keys, layers, period=4, full_at=3),
    }


def _cohere(keys: GgufKeys, values: Values) -> Values:
    return {"use_qk_norm": keys.has_tensor("blk.0.attn_q_norm.weight")}


def _cohere2(keys: GgufKeys, values: Values) -> Values:
    layers = values["num_hidden_layers"]
    return {"layer_types": _layer_types(keys, layers, period=4, full_at=3)}


def _glm4(keys: GgufKeys, values: Values) -> Values:
    return {
        **_partial(keys, values),
        "attention_bias": keys.has_tensor("blk.0.attn_q.bias"),
    }


def _gpt_neox(keys: GgufKeys, values: Values) -> Values:
    share = _partial(keys, values).get("partial_rotary_factor", 1.0)
    return {
        "rotary_pct": share,
        "partial_rotary_factor": share,
        "use_parallel_residual": keys.flag("use_parallel_residual", True),
    }


def _stablelm(keys: GgufKeys, values: Values) -> Values:
    return {
        **_partial(keys, values),
        "use_qkv_bias": keys.has_tensor("blk.0.attn_q.bias"),
        "qk_layernorm": keys.has_tensor("blk.0.attn_q_norm.weight"),
        # In a parallel block, attention and MLP share one norm.
        "use_parallel_residual": not keys.has_tensor("blk.0.ffn_norm.weight"),
    }


def _falcon(keys: GgufKeys, values: Values) -> Values:
    kv_heads = keys.whole("attention.head_count_kv", 1)
    two_norms = keys.has_tensor("blk.0.attn_norm_2.weight")
    # Grouped KV heads came with the new decoder; the old one has one KV head for all.
    is_new = two_norms or 1 < kv_heads < values["num_attention_heads"]
    derived: Values = {
        "new_decoder_architecture": is_new,
        "num_kv_heads": kv_heads,
        "num_key_value_heads": kv_heads,
        "multi_query": is_new or kv_heads == 1,
        "bias": keys.has_tensor("blk.0.attn_qkv.bias"),
        "ffn_hidden_size": values.get("intermediate_size"),
    }
    if is_new:
        derived["num_ln_in_parallel_attn"] = 2 if two_norms else 1
    return derived


def _gpt_oss(keys: GgufKeys, values: Values) -> Values:
    layers = values["num_hidden_layers"]
    rope = {**values["rope_parameters"]}
    if rope["rope_type"] == "yarn":
        rope = {"beta_fast": 32.0, "beta_slow": 1.0, **rope, "truncate": False}
    derived: Values = {
        "layer_types": _layer_types(keys, layers, period=2, full_at=1),
        "rope_parameters": rope,
    }
    if keys.has("expert_feed_forward_length"):
        derived["intermediate_size"] = keys.whole("expert_feed_forward_length")
    return derived


def _deepseek2(keys: GgufKeys, values: Values) -> Values:
    """Read the sizes of latents; newer files state those of an absorbed head under the old keys."""
    turning = keys.whole("rope.dimension_count")
    width = keys.whole("attention.key_length_mla", keys.whole("attention.key_length", turning))
    value = keys.whole("attention.value_length_mla", keys.whole("attention.value_length", width))
    is_sigmoid = keys.whole("expert_gating_func", 1) == 2
    groups, way = keys.whole("expert_group_count", 1), "greedy"
    if keys.has_tensor(f"blk.{keys.whole('leading_dense_block_count', 0)}.exp_probs_b.bias"):
        way = "noaux_tc"
    elif groups > 1:
        way = "group_limited_greedy"
    rope = {**values["rope_parameters"]}
    if rope["rope_type"] == "yarn":
        # Cosines and sines are not scaled; the multiplier is a tenth of what config.json has.
        over = round(keys.number("rope.scaling.yarn_log_multiplier", 0.0) * 10, 6)
        rope |= {"mscale": over, "mscale_all_dim": over} if over else {"attention_factor": 1.0}
    derived: Values = {
        "architectures": ["DeepseekV3ForCausalLM" if is_sigmoid else "DeepseekV2ForCausalLM"],
        "head_dim": turning,
        "qk_rope_head_dim": turning,
        "qk_nope_head_dim": max(0, width - turning),
        "v_head_dim": value,
        "rope_parameters": rope,
        "norm_topk_prob": keys.flag("expert_weights_norm", False),
        "scoring_func": "sigmoid" if is_sigmoid else "softmax",
        "topk_method": way,
    }
    if way != "greedy":
        derived |= {"n_group": groups, "topk_group": keys.whole("expert_group_used_count", 1)}
    return derived


def _lfm2(keys: GgufKeys, values: Values) -> Values:
    """Read which blocks attend: those that have KV heads."""
    counts = keys.by_block("attention.head_count_kv")
    path = keys.checkpoint.path
    if len(distinct := {count for count in counts if count}) > 1:
        raise UnsupportedFormatError(
            f"blocks of {' and '.join(map(str, sorted(distinct)))} KV heads in one model are not "
            "supported",
            path=path,
        )
    if keys.whole("attention.sliding_window", 0):
        raise UnsupportedFormatError("windows of this architecture are not supported", path=path)
    layers = range(len(counts))
    return {
        "num_key_value_heads": max(distinct, default=values["num_attention_heads"]),
        "layer_types": ["full_attention" if count else "conv" for count in counts],
        "conv_bias": any(keys.has_tensor(f"blk.{n}.shortconv.conv.bias") for n in layers),
    }


_SILU = {"hidden_act": "silu"}
_GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh"}
# Values that the first files lack.
_FIRST_GEMMA2 = {
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "sliding_window": 4096,
}
_SPARSE = {**_SILU, "decoder_sparse_step": 1}
_COUNT = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
_CAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}

ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(
        "LlamaForCausalLM", _SILU, {"expert_used_count": "num_experts_per_tok"}, derive=_llama
    ),
    "smollm3": Architecture("SmolLM3ForCausalLM", _SILU, derive=_smollm3),
    "qwen2": Architecture("Qwen2ForCausalLM", {**_SILU, "use_sliding_window": False}),
    "qwen2moe": Architecture(
        "Qwen2MoeForCausalLM",
        {**_SPARSE, "norm_topk_prob": False, "use_sliding_window": False},
        _COUNT,
        derive=_experts,
    ),
    "qwen3": Architecture("Qwen3ForCausalLM", {**_SILU, "use_sliding_window": False}),
    "qwen3moe": Architecture(
        "Qwen3MoeForCausalLM",
        {**_SPARSE, "norm_topk_prob": True, "use_sliding_window": False},
        _COUNT,
        derive=_experts,
    ),
    "olmoe": Architecture(
        "OlmoeForCausalLM", {**_SILU, "norm_topk_prob": False}, _COUNT, derive=_experts
    ),
    "gemma": Architecture("GemmaForCausalLM", _GEMMA),
    "gemma2": Architecture(
        "Gemma2ForCausalLM", {**_GEMMA, **_FIRST_GEMMA2}, numbers=_CAPS, derive=_gemma2
    ),
    "gemma3": Architecture("Gemma3ForCausalLM", _GEMMA, numbers=_CAPS, derive=_gemma3),
    "phi3": Architecture("Phi3ForCausalLM", _SILU, derive=_phi3),
    "olmo2": Architecture("Olmo2ForCausalLM", _SILU, derive=_olmo2),
    "granite": Architecture(
        "GraniteForCausalLM",
        _SILU,
        numbers={
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
        },
        derive=_llama,
    ),
    "command-r": Architecture(
        "CohereForCausalLM", _SILU, numbers={"logit_scale": "logit_scale"}, derive=_cohere
    ),
    "cohere2": Architecture(
        "Cohere2ForCausalLM", _SILU, numbers={"logit_scale": "logit_scale"}, derive=_cohere2
    ),
    "glm4": Architecture("Glm4ForCausalLM", _SILU, derive=_glm4),
    "gpt2": Architecture(
        "GPT2LMHeadModel",
        {"activation_function": "gelu_new"},
        {
            "context_length": "n_positions",
            "embedding_length": "n_embd",
            "block_count": "n_layer",
            "attention.head_count": "n_head",
            "feed_forward_length": "n_inner",
        },
        {"attention.layer_norm_epsilon": "layer_norm_epsilon"},
    ),
    "gptneox": Architecture(
        "GPTNeoXForCausalLM", {"hidden_act": "gelu", "attention_bias": True}, derive=_gpt_neox
    ),
    "stablelm": Architecture("StableLmForCausalLM", _SILU, derive=_stablelm),
    "falcon": Architecture(
        "FalconForCausalLM",
        {"activation": "gelu", "alibi": False, "parallel_attn": True},
        numbers={"attention.layer_norm_epsilon": "layer_norm_epsilon"},
        derive=_falcon,
    ),
    "gpt-oss": Architecture(
        "GptOssForCausalLM",
        {**_SILU, "attention_bias": True, "swiglu_limit": 7.0},
        {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
        derive=_gpt_oss,
    ),
    "deepseek2": Architecture(
        "DeepseekV2ForCausalLM",
        _SILU,
        {
            "attention.kv_lora_rank": "kv_lora_rank",
            "attention.q_lora_rank": "q_lora_rank",
            "expert_count": "n_routed_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_shared_count": "n_shared_experts",
            "expert_feed_forward_length": "moe_intermediate_size",
            "leading_dense_block_count": "first_k_dense_replace",
        },
        {"expert_weights_scale": "routed_scaling_factor"},
        derive=_deepseek2,
    ),
    "lfm2": Architecture(
        "Lfm2ForCausalLM",
        {"block_auto_adjust_ff_dim": False},  # the size is stated as it is
        {"shortconv.l_cache": "conv_L_cache"},
        {"attention.layer_norm_rms_epsilon": "norm_eps"},
        by_block=("attention.head_count_kv",),
        derive=_lfm2,
    ),
}

# The keys of most architectures: GGUF's → config.json's.
INTEGERS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
}
NUMBERS = {
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_eps",
}
