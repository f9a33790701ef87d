"""The numbers of one model, normalised from a config.json or GGUF metadata, for every family."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from octavo.layers.moe import Routing
from octavo.layers.rope import Rope


class ExpertSpec(Struct, frozen=True):
    """The mixture of experts in one layer."""

    experts: int
    ffn: int
    routing: Routing
    shared_ffn: int = 0  # size of the expert that every token passes; 0: there is none
    shared_gate: bool = True  # a sigmoid weights that expert
    correction: bool = False  # a learned number is added to each score for the choice alone
    bias: bool = False  # the router and the experts have biases


class LatentSpec(Struct, frozen=True):
    """The sizes of latent attention, of which all but the first two are of each head."""

    latent: int  # numbers of a position from which all heads' keys and values are computed
    queries: int  # size of the row from which queries are computed; 0: the hidden state
    turning: int  # numbers of a query or key that rotate; all heads' keys share them
    still: int  # its other numbers
    value: int


class ModelSpec(Struct, frozen=True):
    """Hyper-parameters. Whatever varies between or inside families is a field here."""

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
    ropes: tuple[Rope | None, ...]  # by layer; None: positions are not rotated
    windows: tuple[int | None, ...]  # by layer; None: all positions are read
    has_head: bool = True  # False: there are no logits, only hidden states
    types: int = 0  # of texts, each with an embedding of its own
    skipped_positions: int = 0  # leading rows of the positions' table that no position uses
    buckets: int = 0  # of distances whose bias attention learns; 0: there is no such bias
    tied: bool = False  # the head's weight is the embedding's
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    gated: bool = True  # the MLP multiplies its activation by a second projection
    norm: Literal["rms", "layer"] = "rms"
    norm_bias: bool = True  # of LayerNorms
    norm_offset: float = 0.0  # added to the stored weights of RMSNorms
    qk_norm: bool = False
    qk_norm_whole: bool = False  # over all heads together
    sinks: bool = False  # each head can attend to a learned sink
    fused_qkv: bool = False  # the checkpoint keeps queries, keys and values as one tensor
    fused_gate_up: bool = False
    attention_cap: float | None = None
    logit_cap: float | None = None
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    latent: LatentSpec | None = None  # what each position keeps, if not keys and values
    num_drafting: int = 0  # layers behind the last one that may draft; no text depends on them
    convolutions: tuple[bool, ...] = ()  # by layer; True: a convolution is in attention's place
    kernel: int = 0  # of convolutions
    kernel_bias: bool = False  # convolutions and the projections around them have biases
    parallel: bool = False  # attention and MLP both read the block's input
    parallel_norms: int = 2  # norms of such a block; 1: attention and MLP share it
    experts: tuple[ExpertSpec | None, ...] = ()  # by layer; None or no entry: a dense MLP
