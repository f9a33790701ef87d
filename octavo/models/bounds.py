"""The numbers that a model's files may state, by field: what lies beyond is damage, not a model.

The bounds of sizes are far above those of any published model, and low enough that a table with an
entry for each row, head or expert cannot exhaust memory.
"""

from __future__ import annotations

from collections.abc import Mapping

# The bound of whole numbers that have no bound of their own.
MAX_SIZE = 1 << 31

MAX_VOCABULARY = 1 << 24
_WIDTH = 1 << 20
_HEADS = 1 << 14
_EXPERTS = 1 << 14
_LAYERS = 10_000

# The largest value of each whole number; the least is 0, or 1 where the reader asks for a size.
MOST: Mapping[str, int] = {
    "vocab_size": MAX_VOCABULARY,
    "bos_token_id": MAX_VOCABULARY - 1,
    "eos_token_id": MAX_VOCABULARY - 1,
    "hidden_size": _WIDTH,
    "n_embd": _WIDTH,
    "intermediate_size": _WIDTH,
    "n_inner": _WIDTH,
    "ffn_hidden_size": _WIDTH,
    "moe_intermediate_size": _WIDTH,
    "shared_expert_intermediate_size": _WIDTH,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _HEADS,
    "num_kv_heads": _HEADS,
    "n_head": _HEADS,
    "head_dim": 1 << 16,
    "num_hidden_layers": _LAYERS,
    "n_layers": _LAYERS,
    "n_heads": _HEADS,
    "dim": _WIDTH,
    "hidden_dim": _WIDTH,
    "type_vocab_size": 1 << 16,
    "pad_token_id": MAX_VOCABULARY - 1,
    "relative_attention_num_buckets": 1 << 12,
    "local_attention": MAX_SIZE - 1,
    "global_attn_every_n_layers": _LAYERS,
    "max_trained_positions": MAX_SIZE - 1,
    "n_layer": _LAYERS,
    "num_experts": _EXPERTS,
    "num_local_experts": _EXPERTS,
    "num_experts_per_tok": _EXPERTS,
    "decoder_sparse_step": _LAYERS,
    "max_window_layers": _LAYERS,
    "sliding_window_pattern": _LAYERS,
    "no_rope_layer_interval": _LAYERS,
    "num_ln_in_parallel_attn": 2,
    "max_position_embeddings": MAX_SIZE - 1,
    "original_max_position_embeddings": MAX_SIZE - 1,
    "n_positions": MAX_SIZE - 1,
    "sliding_window": MAX_SIZE - 1,
    "conv_L_cache": 1 << 8,
    "block_ff_dim": _WIDTH,
    "block_multiple_of": _WIDTH,
    "kv_lora_rank": _WIDTH,
    "q_lora_rank": _WIDTH,
    "qk_rope_head_dim": 1 << 16,
    "qk_nope_head_dim": 1 << 16,
    "v_head_dim": 1 << 16,
    "n_routed_experts": _EXPERTS,
    "n_shared_experts": _EXPERTS,
    "n_group": _EXPERTS,
    "topk_group": _EXPERTS,
    "first_k_dense_replace": _LAYERS,
    "moe_layer_freq": _LAYERS,
    "num_nextn_predict_layers": _LAYERS,
    "bits": 32,
    # of generation_config.json
    "top_k": MAX_SIZE - 1,
    "max_new_tokens": MAX_SIZE - 1,
    "general.sampling.top_k": MAX_SIZE - 1,
}

# The least values of numbers that must be above 1: a sequence has a prompt and a token.
LEAST: Mapping[str, int] = {"max_position_embeddings": 2, "n_positions": 2, "conv_L_cache": 2}

_EPSILON = (0.0, 1.0)
_BASE = (0.0, 1e15)
_FACTOR = (0.0, 1e6)
_SCALE = (-1e6, 1e6)
_CAP = (1e-3, 1e6)
# A sampling parameter with a value outside of these cannot be used by any request.
_TEMPERATURE = (0.0, 1e6)
_TOP_P = (1e-9, 1.0)
_SHARE = (0.0, 1.0)
_REPETITION = (0.01, 100.0)

# The least and the largest value of each number that need not be whole.
RANGES: Mapping[str, tuple[float, float]] = {
    "rms_norm_eps": _EPSILON,
    "layer_norm_eps": _EPSILON,
    "layer_norm_epsilon": _EPSILON,
    "norm_eps": _EPSILON,
    # of the rotary embedding
    "rope_theta": _BASE,
    "rope_local_base_freq": _BASE,
    "rotary_emb_base": _BASE,
    "global_rope_theta": _BASE,
    "local_rope_theta": _BASE,
    "rotary_pct": _SHARE,
    "partial_rotary_factor": _SHARE,
    "factor": _FACTOR,
    "low_freq_factor": _FACTOR,
    "high_freq_factor": _FACTOR,
    "beta_fast": (1e-3, 1e6),
    "beta_slow": (1e-3, 1e6),
    "mscale": (0.0, 100.0),
    "mscale_all_dim": (0.0, 100.0),
    "attention_factor": (0.0, 1e3),
    "short_factor": (1e-6, 1e9),
    "long_factor": (1e-6, 1e9),
    # of single families
    "attention_multiplier": _SCALE,
    "embedding_multiplier": _SCALE,
    "residual_multiplier": _SCALE,
    "logits_scaling": _SCALE,
    "logit_scale": _SCALE,
    "routed_scaling_factor": _SCALE,
    "query_pre_attn_scalar": _FACTOR,
    "attn_logit_softcapping": _CAP,
    "final_logit_softcapping": _CAP,
    "swiglu_limit": _FACTOR,
    "swiglu_alpha": _FACTOR,
    "mlp_only_layers": (0.0, _LAYERS),
    "full_attn_idxs": (0.0, _LAYERS),
    "block_ffn_dim_multiplier": (1e-3, 1e3),
    "no_rope_layers": (0.0, 1.0),
    # of generation_config.json, and of GGUF
    "temperature": _TEMPERATURE,
    "top_p": _TOP_P,
    "min_p": _SHARE,
    "repetition_penalty": _REPETITION,
    "general.sampling.temp": _TEMPERATURE,
    "general.sampling.top_p": _TOP_P,
    "general.sampling.min_p": _SHARE,
    "general.sampling.penalty_repeat": _REPETITION,
}
