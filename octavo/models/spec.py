"""A model's numbers, the same for every family: what a config.json comes down to."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.layers import Rope, Routing


@dataclass(frozen=True, slots=True)
class ExpertSpec:
    """A mixture of experts' numbers."""

    experts: int
    ffn: int
    routing: Routing
    shared_ffn: int = 0  # of an expert that every token passes; 0: there is none


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Hyper-parameters, normalised. What only one family has, its own file keeps."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    eps: float
    activation: str
    max_len: int
    attention_scale: float
    ropes: tuple[Rope | None, ...]  # a layer
    windows: tuple[int | None, ...]  # a layer; None: all positions are read
    tied: bool = False  # the head's weight is the embedding's
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    qk_norm: bool = False
    qk_norm_whole: bool = False  # over all heads together
    norm_offset: float = 0.0  # what is added to the stored weights of norms
    fused_qkv: bool = False  # the checkpoint keeps queries, keys and values as one tensor
    fused_gate_up: bool = False
    attention_cap: float | None = None
    logit_cap: float | None = None
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    parallel: bool = False  # attention and MLP both read what came into the block
    experts: tuple[ExpertSpec | None, ...] = ()  # a layer; None or none at all: a dense MLP
