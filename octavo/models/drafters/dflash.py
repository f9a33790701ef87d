"""DFlash: a few layers that draft a whole block of tokens in one pass.

The rows of a pass are the token that was drawn last, and masks behind it, whose rows propose the
tokens in their places. All of them read each other, and the context: keys and values that come of
the model's hidden states of some layers, in the places of their positions. These follow from the
tokens up to their own. The model computes them with its own, so the drafter lacks nothing; those of
a block's own rows are overwritten when the model computes the tokens there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from octavo.layers import (
    Batch,
    Context,
    ContextAttention,
    DraftBlock,
    Embedding,
    GatedMLP,
    Linear,
    Model,
    ModelSpec,
    Module,
    Part,
    RMSNorm,
    Value,
    WeightSource,
)
from octavo.loader import Checkpoint
from octavo.models.config_reader import SLIDING, Config, ConfigurationError
from octavo.models.drafters.reading import checked_spec, read_layers
from octavo.models.drafters.shared import (
    SharedEmbedding,
    SharedHead,
    has_embedding,
    has_tensor,
)
from octavo.models.drafters.side_by_side import SideBySide
from octavo.models.drafters.small_vocabulary import IS_PROPOSED, OFFSETS, read_tokens
from octavo.models.weights import Weights

BLOCK_SIZE = 16  # rows of a block, where a file does not state them
MOST_ROWS = 256  # of any file
# As z-lab's files name the layers of the model whose outputs are read, and those of the library
# speculators the ones whose inputs are.
OUTPUT_IDS, INPUT_IDS = "target_layer_ids", "aux_hidden_state_layer_ids"
# What changes the computation, and is not read; of other drafters in the same form.
_OTHERS = ("projector_type", "sample_from_anchor", "shift_label")


class BlockLayer(Module):
    """Attention over the context and the block, and an MLP, with a norm before each."""

    def __init__(self, spec: ModelSpec, number: int, *, is_causal: bool) -> None:
        hidden, dim = spec.hidden, spec.head_dim
        size = spec.kv_heads * dim
        self.attn_norm, self.mlp_norm = RMSNorm(hidden, spec.eps), RMSNorm(hidden, spec.eps)
        self.q = Linear(hidden, spec.heads * dim, bias=spec.qkv_bias)
        self.kv = Linear(hidden, (Part("k", size), Part("v", size)), bias=spec.qkv_bias)
        self.attend = ContextAttention(
            *(spec.heads, spec.kv_heads, dim),
            scale=spec.attention_scale,
            rope=spec.ropes[number],
            window=spec.windows[number],
            q_norm=RMSNorm(dim, spec.eps),
            k_norm=RMSNorm(dim, spec.eps),
        )
        self.attend.both_ways = not is_causal
        self.out = Linear(spec.heads * dim, hidden, bias=spec.out_bias)
        self.mlp = GatedMLP(hidden, spec.ffn, spec.activation)

    def __call__(self, x: Value, residual: Value | None, batch: Batch) -> tuple[Value, Value]:
        x, residual = self.attn_norm.add(x, residual)
        x = self.out(self.attend.attend(self.q(x), self.kv(x), batch))
        x, residual = self.mlp_norm.add(x, residual)
        return self.mlp(x), residual


class DFlash(Model):
    """A drafter whose pass has a row for each token that it proposes."""

    ignored = (OFFSETS, IS_PROPOSED, "verifier_*", "*rotary_emb.inv_freq")
    renames = (("model.", ""),)
    features: Context

    def __init__(
        self,
        spec: ModelSpec,
        block: DraftBlock,
        blocks: Sequence[BlockLayer],
        context: Context,
        embed: Embedding,
        head: Linear,
        tokens: NDArray[np.int64] | None,
    ) -> None:
        self.spec, self.draft_block = spec, block
        self.embed = embed
        self.features = context
        self.blocks = list(blocks)
        self.norm = RMSNorm(spec.hidden, spec.eps)
        self.head = head
        self.tokens = tokens  # the model's ids of its own; None: they are the same

    def weights(self) -> Mapping[str, WeightSource]:
        layer, attention, mlp = "layers.*.", "layers.*.self_attn.", "layers.*.mlp."
        return {
            "embed": "embed_tokens",
            "features.projections.*": "fc/*",
            "features.norm": "hidden_norm",
            "blocks.*.attn_norm": layer + "input_layernorm",
            "blocks.*.q": attention + "q_proj",
            "blocks.*.kv": (attention + "k_proj", attention + "v_proj"),
            "blocks.*.attend.q_norm": attention + "q_norm",
            "blocks.*.attend.k_norm": attention + "k_norm",
            "blocks.*.out": attention + "o_proj",
            "blocks.*.mlp_norm": layer + "post_attention_layernorm",
            "blocks.*.mlp.gate_up": (mlp + "gate_proj", mlp + "up_proj"),
            "blocks.*.mlp.down": mlp + "down_proj",
            "norm": "norm",
            "head": "lm_head",
        }

    def hidden(self, batch: Batch) -> Value:
        x, residual = self.embed(batch.token_ids), None
        for block in self.blocks:
            x, residual = block(x, residual, batch)
        return self.norm.add(x, residual)[0]

    def logits(self, hidden: Value) -> Value:
        assert self.head is not None
        scores, spec = self.head(hidden), self.spec
        if spec.logit_scale != 1.0:
            scores = scores * spec.logit_scale
        if spec.logit_cap is not None:
            scores = self.ops.soft_cap(scores, spec.logit_cap)
        if self.tokens is None:
            return scores
        return self.ops.spread(scores, self.tokens, spec.vocabulary)


def declare(
    config: Config, target: ModelSpec, weights: Weights, checkpoint: Checkpoint
) -> tuple[DFlash, Weights]:
    """Declare the drafter of a checkpoint, and return its weights as the layers have them."""
    _refuse_others(config)
    kinds = _kinds_of(config)
    cap = target.logit_cap
    if config.has("final_logit_softcapping"):
        cap = config.number("final_logit_softcapping")
    spec = structs.replace(
        checked_spec(config, target, windows=tuple([window for window, _ in kinds])),
        embed_scale=config.number("input_embedding_scale", 1.0),
        logit_scale=config.number("output_multiplier", target.logit_scale),
        logit_cap=cap,
    )
    if spec.hidden != target.hidden:
        raise ConfigurationError(
            f"config: hidden_size is {spec.hidden:,}, and the model's embedding has "
            f"{target.hidden:,} numbers: it was made for another one"
        )
    key = OUTPUT_IDS if config.has(OUTPUT_IDS) else INPUT_IDS
    layers = read_layers(config, target, key, later=int(key == OUTPUT_IDS))
    blocks = [
        BlockLayer(spec, number, is_causal=is_causal) for number, (_, is_causal) in enumerate(kinds)
    ]
    readers = [(each.kv, each.attend) for each in blocks]
    context = Context(layers, target.hidden, RMSNorm(spec.hidden, spec.eps), readers)
    count = config.positive("draft_vocab_size", spec.vocabulary)
    tokens = read_tokens(checkpoint, count, spec.vocabulary)
    num_drafted = spec.vocabulary if tokens is None else len(tokens)
    has_own_head = tokens is not None or has_tensor(weights, "lm_head")
    embedding = Embedding if has_embedding(weights) else SharedEmbedding
    model = DFlash(
        spec,
        _block_of(config, spec),
        blocks,
        context,
        embedding(spec.vocabulary, spec.hidden, spec.embed_scale),
        (Linear if has_own_head else SharedHead)(spec.hidden, num_drafted),
        tokens,
    )
    return model, SideBySide(weights, {"fc": len(layers)})


def _refuse_others(config: Config) -> None:
    """Refuse drafters whose configuration asks for what is not computed."""
    for key in _OTHERS:
        value = config.values.get(key)
        if value not in (None, False, "dflash"):
            raise ConfigurationError(
                f"{config.name_of(key)} is {value!r}: such drafters of blocks are not read"
            )


def _kinds_of(config: Config) -> list[tuple[int | None, bool]]:
    """Read the window of each layer, and whether it reads no later rows of a block.

    Unless that is stated, layers with a window that `layer_types` gives them are causal.
    """
    layers = config.layers()
    kinds = config.layer_kinds(layers, SLIDING) or ("",) * layers
    are_all = config.boolean("use_swa", False) and SLIDING not in kinds
    slides = [are_all or kind == SLIDING for kind in kinds]
    window = config.integer("swa_window_size", 0) or config.integer("sliding_window", 0)
    if any(slides) and window < 1:
        raise ConfigurationError(f"config: {SLIDING} layers need a sliding_window above 0")
    usual = not (are_all or config.boolean("sliding_window_non_causal", False))
    stated = "causal" if config.has("causal") else "is_causal"
    return [
        (window if slide else None, config.boolean(stated, slide and usual)) for slide in slides
    ]


def _block_of(config: Config, spec: ModelSpec) -> DraftBlock:
    """Read the rows of a block, and the token that is a mask."""
    rows, mask = config.positive("block_size", BLOCK_SIZE), config.integer("mask_token_id")
    if not 2 <= rows <= MOST_ROWS:
        raise ConfigurationError(
            f"{config.name_of('block_size')} must be from 2 to {MOST_ROWS}, and is {rows:,}"
        )
    if mask >= spec.vocabulary:
        raise ConfigurationError(
            f"{config.name_of('mask_token_id')} is {mask:,}, and the model has "
            f"{spec.vocabulary:,} tokens: it was made for another one"
        )
    return DraftBlock(rows, mask)
