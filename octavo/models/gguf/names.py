"""The Hugging Face name of each GGUF tensor, by architecture."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from octavo.models.gguf.undo import (
    AS_STORED,
    GroupedRows,
    Interleaved,
    OneRow,
    PairedRows,
    PlusOne,
    Transposed,
    Undo,
)


class Original(Struct, frozen=True):
    """A Hugging Face tensor: `*` is the number of the block, `@` that of the expert or head.

    If only this side has `@`, the stored tensor holds all of them along its first axis.
    """

    name: str
    undo: Undo = AS_STORED
    also: tuple[str, ...] = ()  # further stored tensors that it is made of


# Stored name → original. A name without a suffix stands for .weight and .bias.
Table = Mapping[str, Original]
Names = Mapping[str, "str | Original"]

ATTENTION: Names = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
# Queries and keys that llama.cpp rotates as neighbouring pairs, and the checkpoint as halves.
PAIRED_ATTENTION: Names = {
    **ATTENTION,
    "attn_q": Original("self_attn.q_proj", PairedRows("heads")),
    "attn_k": Original("self_attn.k_proj", PairedRows("kv_heads")),
}
QK_NORMS: Names = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
NORMS: Names = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
MLP: Names = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
FUSED_MLP: Names = {"ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"}
EXPERTS: Names = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.@.gate_proj",
    "ffn_up_exps": "mlp.experts.@.up_proj",
    "ffn_down_exps": "mlp.experts.@.down_proj",
}
SHARED_EXPERT: Names = {
    "ffn_gate_inp_shexp": Original("mlp.shared_expert_gate", OneRow()),
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
MIXTRAL: Names = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.@.w1",
    "ffn_up_exps": "block_sparse_moe.experts.@.w3",
    "ffn_down_exps": "block_sparse_moe.experts.@.w2",
    # files from before experts were stacked
    "ffn_gate.@": "block_sparse_moe.experts.@.w1",
    "ffn_up.@": "block_sparse_moe.experts.@.w3",
    "ffn_down.@": "block_sparse_moe.experts.@.w2",
}
GEMMA_NORMS: Names = {  # from Gemma 2 on
    "attn_norm": Original("input_layernorm", PlusOne()),
    "post_attention_norm": Original("post_attention_layernorm", PlusOne()),
    "ffn_norm": Original("pre_feedforward_layernorm", PlusOne()),
    "post_ffw_norm": Original("post_feedforward_layernorm", PlusOne()),
}
GPT_OSS: Names = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "attn_sinks.weight": "self_attn.sinks",
    "ffn_gate_inp": "mlp.router",
    "ffn_gate_exps.weight": Original(
        "mlp.experts.gate_up_proj", Interleaved(), ("blk.*.ffn_up_exps.weight",)
    ),
    "ffn_gate_exps.bias": Original(
        "mlp.experts.gate_up_proj_bias", Interleaved(), ("blk.*.ffn_up_exps.bias",)
    ),
    "ffn_down_exps.weight": Original("mlp.experts.down_proj", Transposed()),
    "ffn_down_exps.bias": "mlp.experts.down_proj_bias",
}
DEEPSEEK2: Names = {
    "attn_q": "self_attn.q_proj",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",  # files from before the keys' matrices were turned
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
    "attn_output": "self_attn.o_proj",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
LFM2: Names = {
    **ATTENTION,
    "attn_norm": "operator_norm",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.conv.weight": Original("conv.conv.weight", OneRow(axis=1)),
    "shortconv.conv.bias": "conv.conv.bias",
    "shortconv.out_proj": "conv.out_proj",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
}
GPT2: Names = {
    "attn_norm": "ln_1",
    "ffn_norm": "ln_2",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
    "attn_qkv.weight": Original("attn.c_attn.weight", Transposed()),
    "attn_output.weight": Original("attn.c_proj.weight", Transposed()),
    "ffn_up.weight": Original("mlp.c_fc.weight", Transposed()),
    "ffn_down.weight": Original("mlp.c_proj.weight", Transposed()),
}
GPT_NEOX: Names = {
    **NORMS,
    "attn_qkv": Original("attention.query_key_value", GroupedRows()),
    "attn_output": "attention.dense",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
FALCON: Names = {
    "attn_norm": "input_layernorm",
    "attn_qkv": Original("self_attention.query_key_value", GroupedRows()),
    "attn_output": "self_attention.dense",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
TWO_FALCON_NORMS: Names = {"attn_norm": "ln_mlp", "attn_norm_2": "ln_attn"}
STABLELM_NORMS: Names = {
    "attn_q_norm": "self_attn.q_layernorm.norms.@",
    "attn_k_norm": "self_attn.k_layernorm.norms.@",
}
GLM4_NORMS: Names = {
    **NORMS,
    "post_attention_norm": "post_self_attn_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
}
OLMO2_NORMS: Names = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}

USUAL: Names = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
TRANSFORMER: Names = {"output": "lm_head", "output_norm": "transformer.ln_f"}


def _table(blocks: Names, outside: Names = USUAL, prefix: str = "model.layers.*.") -> Table:
    table = {stored: _original(original) for stored, original in outside.items()}
    for stored, original in blocks.items():
        inner = _original(original)
        table[f"blk.*.{stored}"] = Original(prefix + inner.name, inner.undo, inner.also)
    return table


def _original(original: str | Original) -> Original:
    return Original(original) if isinstance(original, str) else original


def _plus_one(names: Names) -> Names:
    return {stored: Original(_original(name).name, PlusOne()) for stored, name in names.items()}


_GEMMA_OUTSIDE: Names = {**USUAL, "output_norm": Original("model.norm", PlusOne())}
_FALCON_OUTSIDE: Names = {**TRANSFORMER, "token_embd": "transformer.word_embeddings"}

TABLES: Mapping[str, Table] = {
    "llama": _table({**NORMS, **PAIRED_ATTENTION, **MLP, **MIXTRAL}),
    "smollm3": _table({**NORMS, **PAIRED_ATTENTION, **MLP}),
    "granite": _table({**NORMS, **PAIRED_ATTENTION, **MLP}),
    "qwen2": _table({**NORMS, **ATTENTION, **MLP}),
    "qwen2moe": _table({**NORMS, **ATTENTION, **MLP, **EXPERTS, **SHARED_EXPERT}),
    "qwen3": _table({**NORMS, **ATTENTION, **QK_NORMS, **MLP}),
    "qwen3moe": _table({**NORMS, **ATTENTION, **QK_NORMS, **MLP, **EXPERTS}),
    "gemma": _table({**_plus_one(NORMS), **ATTENTION, **MLP}, _GEMMA_OUTSIDE),
    "gemma2": _table({**GEMMA_NORMS, **ATTENTION, **MLP}, _GEMMA_OUTSIDE),
    "gemma3": _table({**GEMMA_NORMS, **ATTENTION, **_plus_one(QK_NORMS), **MLP}, _GEMMA_OUTSIDE),
    "phi3": _table(
        {
            **NORMS,
            "attn_qkv": "self_attn.qkv_proj",
            "attn_output": "self_attn.o_proj",
            **FUSED_MLP,
        }
    ),
    "olmo2": _table({**OLMO2_NORMS, **ATTENTION, **QK_NORMS, **MLP}),
    "olmoe": _table({**NORMS, **ATTENTION, **QK_NORMS, **EXPERTS}),
    "cohere2": _table({"attn_norm": "input_layernorm", **ATTENTION, **MLP}),
    "command-r": _table({"attn_norm": "input_layernorm", **ATTENTION, **QK_NORMS, **MLP}),
    "glm4": _table({**GLM4_NORMS, **ATTENTION, **FUSED_MLP}),
    "stablelm": _table({**NORMS, **ATTENTION, **STABLELM_NORMS, **MLP}),
    "gpt-oss": _table({**ATTENTION, **GPT_OSS}),
    "deepseek2": _table({**NORMS, **DEEPSEEK2, **MLP, **EXPERTS}),
    "lfm2": _table(
        LFM2,
        {
            "token_embd": "model.embed_tokens",
            "token_embd_norm": "model.embedding_norm",
            "output_norm": "model.embedding_norm",  # as Ollama's converter names it
            "output": "lm_head",
        },
    ),
    "gpt2": _table(
        GPT2,
        {**TRANSFORMER, "token_embd": "transformer.wte", "position_embd": "transformer.wpe"},
        "transformer.h.*.",
    ),
    "gptneox": _table(
        GPT_NEOX,
        {
            "token_embd": "gpt_neox.embed_in",
            "output_norm": "gpt_neox.final_layer_norm",
            "output": "embed_out",
        },
        "gpt_neox.layers.*.",
    ),
    "falcon": _table(FALCON, _FALCON_OUTSIDE, "transformer.h.*."),
    "falcon, two norms": _table(
        {**FALCON, **TWO_FALCON_NORMS}, _FALCON_OUTSIDE, "transformer.h.*."
    ),
}

# Tensors with the parameters of the rotary embedding, which become a part of the config.
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")

SUFFIXES = (".weight", ".bias")  # of a name that stands for both


def look_up(table: Table, pattern: str) -> tuple[Original, str] | None:
    """Return the original, and the suffix to add to its name."""
    if pattern in table:
        return table[pattern], ""
    for suffix in SUFFIXES:
        stem = pattern.removesuffix(suffix)
        if stem != pattern and stem in table:
            return table[stem], suffix
    return None


def pattern_of(name: str) -> tuple[str, list[str]]:
    """Replace the first number in a name by `*` and the second by `@`; return both."""
    numbers: list[str] = []
    words = name.split(".")
    for place, word in enumerate(words):
        if word.isdecimal() and word.isascii() and len(numbers) < 2:
            words[place] = "*@"[len(numbers)]
            numbers.append(word)
    return ".".join(words), numbers


def filled(pattern: str, numbers: list[str]) -> str:
    """Fill a pattern with its numbers; an `@` without a number stays."""
    for sign, number in zip("*@", numbers, strict=False):
        pattern = pattern.replace(sign, number)
    return pattern
