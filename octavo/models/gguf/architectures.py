"""GGUF's architectures, each with what its metadata does not say and how the rest is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.models.gguf.keys import Facts
from octavo.models.gguf.rope import partial_rotation

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Architecture:
    """How one architecture's metadata becomes a config.json."""

    name: str  # as config.json's `architectures` says it
    fixed: Mapping[str, Any] = field(default_factory=dict)  # true of every model of it
    integers: Mapping[str, str] = field(default_factory=dict)  # GGUF's key → config.json's
    numbers: Mapping[str, str] = field(default_factory=dict)
    derive: Callable[[Facts, Values], Values] | None = None


def _layer_types(facts: Facts, layers: int, period: int, full_at: int) -> list[str]:
    """Every `period`-th layer sees everything: those whose number leaves `full_at`."""
    pattern = facts.pattern("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        slides = pattern
    else:
        every = pattern or period
        slides = [layer % every != full_at % every for layer in range(layers)]
    return ["sliding_attention" if slide else "full_attention" for slide in slides]


def _llama(facts: Facts, values: Values) -> Values:
    derived: Values = {
        "attention_bias": facts.has_tensor("blk.0.attn_q.bias"),
        "mlp_bias": facts.has_tensor("blk.0.ffn_up.bias"),
    }
    if facts.whole("expert_count", 0):
        derived["architectures"] = ["MixtralForCausalLM"]
        derived["num_local_experts"] = facts.whole("expert_count")
    return derived


def _smollm3(facts: Facts, values: Values) -> Values:
    layers = range(values["num_hidden_layers"])
    return {"no_rope_layers": [int((layer + 1) % 4 != 0) for layer in layers]}


def _experts(facts: Facts, values: Values) -> Values:
    """The experts' size, which older files leave to the tensors' shapes; the layers without any."""
    layers = range(values["num_hidden_layers"])
    derived: Values = {
        "mlp_only_layers": [n for n in layers if facts.has_tensor(f"blk.{n}.ffn_gate.weight")]
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
        if facts.has(stored):
            derived[key] = facts.whole(stored)
        elif facts.has_tensor(name):
            derived[key] = facts.rows(name, axis)
    if facts.has("expert_weights_norm"):
        derived["norm_topk_prob"] = facts.flag("expert_weights_norm", False)
    return derived


def _gemma2(facts: Facts, values: Values) -> Values:
    layers = values["num_hidden_layers"]
    return {
        "query_pre_attn_scalar": _gemma_scalar(values, largest=46),
        "layer_types": _layer_types(facts, layers, period=2, full_at=1),
    }


def _gemma3(facts: Facts, values: Values) -> Values:
    layers = values["num_hidden_layers"]
    near = {"rope_type": "default", "rope_theta": facts.number("rope.freq_base_swa", 10_000.0)}
    far = {**values["rope_parameters"]}
    if not facts.has("rope.freq_base"):
        far["rope_theta"] = 1_000_000.0
    return {
        "query_pre_attn_scalar": _gemma_scalar(values, largest=62),
        "layer_types": _layer_types(facts, layers, period=6, full_at=5),
        "rope_parameters": {"full_attention": far, "sliding_attention": near},
    }


def _gemma_scalar(values: Values, largest: int) -> int:
    """Scores are divided by its root: a head's size but in the 27B model, known by its layers."""
    if values["num_hidden_layers"] == largest:
        return int(values["hidden_size"]) // int(values["num_attention_heads"])
    return _head_dim(values)


def _phi3(facts: Facts, values: Values) -> Values:
    derived = partial_rotation(facts, _head_dim(values))
    if facts.has("rope.scaling.original_context_length"):
        length = facts.whole("rope.scaling.original_context_length")
        derived["original_max_position_embeddings"] = length
    return derived


def _partial(facts: Facts, values: Values) -> Values:
    return partial_rotation(facts, _head_dim(values))


def _head_dim(values: Values) -> int:
    heads = max(1, values["num_attention_heads"])
    return int(values.get("head_dim", values["hidden_size"] // heads))


def _olmo2(facts: Facts, values: Values) -> Values:
    """Olmo 3 is Olmo 2 with windows."""
    if not facts.has("attention.sliding_window_pattern"):
        return {}
    layers = values["num_hidden_layers"]
    return {
        "architectures": ["Olmo3ForCausalLM"],
        "layer_types": _layer_types(facts, layers, period=4, full_at=3),
    }


def _cohere(facts: Facts, values: Values) -> Values:
    return {"use_qk_norm": facts.has_tensor("blk.0.attn_q_norm.weight")}


def _cohere2(facts: Facts, values: Values) -> Values:
    layers = values["num_hidden_layers"]
    return {"layer_types": _layer_types(facts, layers, period=4, full_at=3)}


def _glm4(facts: Facts, values: Values) -> Values:
    return {
        **_partial(facts, values),
        "attention_bias": facts.has_tensor("blk.0.attn_q.bias"),
    }


def _gpt_neox(facts: Facts, values: Values) -> Values:
    share = _partial(facts, values).get("partial_rotary_factor", 1.0)
    return {
        "rotary_pct": share,
        "partial_rotary_factor": share,
        "use_parallel_residual": facts.flag("use_parallel_residual", True),
    }


def _stablelm(facts: Facts, values: Values) -> Values:
    return {
        **_partial(facts, values),
        "use_qkv_bias": facts.has_tensor("blk.0.attn_q.bias"),
        "qk_layernorm": facts.has_tensor("blk.0.attn_q_norm.weight"),
        # Of a block in parallel there is one norm for attention and MLP both.
        "use_parallel_residual": not facts.has_tensor("blk.0.ffn_norm.weight"),
    }


def _falcon(facts: Facts, values: Values) -> Values:
    kv_heads = facts.whole("attention.head_count_kv", 1)
    two_norms = facts.has_tensor("blk.0.attn_norm_2.weight")
    # Heads that share KV came with the new decoder; one KV head for all is the old one's.
    is_new = two_norms or 1 < kv_heads < values["num_attention_heads"]
    derived: Values = {
        "new_decoder_architecture": is_new,
        "num_kv_heads": kv_heads,
        "num_key_value_heads": kv_heads,
        "multi_query": is_new or kv_heads == 1,
        "bias": facts.has_tensor("blk.0.attn_qkv.bias"),
        "ffn_hidden_size": values.get("intermediate_size"),
    }
    if is_new:
        derived["num_ln_in_parallel_attn"] = 2 if two_norms else 1
    return derived


def _gpt_oss(facts: Facts, values: Values) -> Values:
    layers = values["num_hidden_layers"]
    rope = {**values["rope_parameters"]}
    if rope["rope_type"] == "yarn":
        rope = {"beta_fast": 32.0, "beta_slow": 1.0, **rope, "truncate": False}
    derived: Values = {
        "layer_types": _layer_types(facts, layers, period=2, full_at=1),
        "rope_parameters": rope,
    }
    if facts.has("expert_feed_forward_length"):
        derived["intermediate_size"] = facts.whole("expert_feed_forward_length")
    return derived


_SILU = {"hidden_act": "silu"}
_GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh"}
# What the first files leave out.
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
}

# What most of them say: GGUF's key → config.json's.
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
