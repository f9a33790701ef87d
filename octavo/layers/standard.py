"""Attention, MLPs, blocks and checkpoint names as most families have them, built from a spec."""

from __future__ import annotations

from octavo.layers.attention import PagedAttention, QKVLinear, SelfAttention
from octavo.layers.block import Block, Norm, ParallelBlock, SandwichBlock, SequentialBlock
from octavo.layers.linear import Linear
from octavo.layers.mlp import MLP, GatedMLP
from octavo.layers.moe import SparseMLP
from octavo.layers.norm import LayerNorm, RMSNorm
from octavo.layers.spec import ModelSpec
from octavo.layers.weight_names import WeightSource


def standard_norm(spec: ModelSpec) -> Norm:
    """Declare a norm of hidden states, of the kind that the spec names."""
    if spec.norm == "layer":
        return LayerNorm(spec.hidden, spec.eps, bias=spec.norm_bias)
    return RMSNorm(spec.hidden, spec.eps, spec.norm_offset)


def _head_norm(spec: ModelSpec, heads: int) -> Norm | None:
    """Declare the norm of queries or keys, if there is one."""
    if not spec.qk_norm:
        return None
    if spec.norm == "layer":
        return LayerNorm((heads, spec.head_dim), spec.eps, bias=False)
    size = heads * spec.head_dim if spec.qk_norm_whole else spec.head_dim
    return RMSNorm(size, spec.eps, spec.norm_offset)


def standard_attention(spec: ModelSpec, layer: int) -> SelfAttention:
    """Declare one layer's self-attention."""
    heads, kv_heads, dim = spec.heads, spec.kv_heads, spec.head_dim
    return SelfAttention(
        QKVLinear(spec.hidden, heads, kv_heads, dim, bias=spec.qkv_bias),
        PagedAttention(
            heads,
            kv_heads,
            dim,
            scale=spec.attention_scale,
            rope=spec.ropes[layer],
            window=spec.windows[layer],
            softcap=spec.attention_cap,
            q_norm=_head_norm(spec, heads),
            k_norm=_head_norm(spec, kv_heads),
            norm_whole=spec.qk_norm_whole,
            has_sinks=spec.sinks,
        ),
        Linear(heads * dim, spec.hidden, bias=spec.out_bias, shard="in"),
    )


def standard_mlp(spec: ModelSpec, layer: int) -> MLP | GatedMLP | SparseMLP:
    """Declare one layer's MLP: experts, gated, or plain."""
    experts = spec.experts[layer] if spec.experts else None
    if experts is not None:
        return SparseMLP(
            spec.hidden,
            experts.ffn,
            experts.experts,
            experts.routing,
            spec.activation,
            router_bias=experts.bias,
            expert_bias=experts.bias,
            shared_ffn=experts.shared_ffn,
            shared_gate=experts.shared_ffn > 0 and experts.shared_gate,
            correction=experts.correction,
        )
    kind = GatedMLP if spec.gated else MLP
    return kind(spec.hidden, spec.ffn, spec.activation, bias=spec.mlp_bias)


def standard_block(spec: ModelSpec, layer: int) -> Block:
    """Declare a block whose attention and MLP run in turn or, if the spec says so, in parallel."""
    norm, attention = standard_norm(spec), standard_attention(spec, layer)
    mlp = standard_mlp(spec, layer)
    if not spec.parallel:
        return SequentialBlock(norm, attention, standard_norm(spec), mlp, spec.residual_scale)
    mlp_norm = standard_norm(spec) if spec.parallel_norms == 2 else None
    return ParallelBlock(norm, attention, mlp_norm, mlp)


def sandwich_block(spec: ModelSpec, layer: int) -> Block:
    """Declare a block with norms before and after both its attention and its MLP."""
    return SandwichBlock(
        standard_norm(spec),
        standard_attention(spec, layer),
        standard_norm(spec),
        standard_norm(spec),
        standard_mlp(spec, layer),
        standard_norm(spec),
    )


def standard_weights(spec: ModelSpec) -> dict[str, WeightSource]:
    """Return the checkpoint names that Llama introduced; a family replaces those that differ.

    Entries for layers that a model does not have are never looked up.
    """
    layer, attention, mlp = (f"model.layers.*.{part}" for part in ("", "self_attn.", "mlp."))
    qkv = ("qkv_proj",) if spec.fused_qkv else ("q_proj", "k_proj", "v_proj")
    gate_up = ("gate_up_proj",) if spec.fused_gate_up else ("gate_proj", "up_proj")
    return {
        "embed": "model.embed_tokens",
        "blocks.*.attn_norm": layer + "input_layernorm",
        "blocks.*.attn.qkv": tuple(attention + name for name in qkv),
        "blocks.*.attn.attend.q_norm": attention + "q_norm",
        "blocks.*.attn.attend.k_norm": attention + "k_norm",
        "blocks.*.attn.out": attention + "o_proj",
        "blocks.*.mlp_norm": layer + "post_attention_layernorm",
        "blocks.*.mlp.gate_up": tuple(mlp + name for name in gate_up),
        "blocks.*.mlp.down": mlp + "down_proj",
        "norm": "model.norm",
        "head": "lm_head",
    }
