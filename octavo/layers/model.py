"""The base of every language model: embedding, blocks, final norm and head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from octavo.layers.block import Block
from octavo.layers.embedding import Embedding
from octavo.layers.linear import Linear
from octavo.layers.module import Batch, Module, Value
from octavo.layers.norm import LayerNorm, RMSNorm
from octavo.layers.spec import ModelSpec
from octavo.layers.standard import standard_block, standard_norm, standard_weights
from octavo.layers.weight_names import WeightSource


class CausalLM(Module):
    """A decoder. A family names the checkpoint's tensors and overrides the parts that differ."""

    # Checkpoint tensors that no layer uses; `*` matches anything.
    ignored: ClassVar[tuple[str, ...]] = ()
    # Prefixes that some checkpoints use, with this family's own prefix; the first match applies.
    renames: ClassVar[tuple[tuple[str, str], ...]] = ()

    embed: Embedding
    blocks: Sequence[Block]
    norm: RMSNorm | LayerNorm
    head: Linear
    tied: bool = False  # the head's weight is the embedding's
    logit_scale: float = 1.0
    logit_cap: float | None = None

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.embed = Embedding(spec.vocabulary, spec.hidden, spec.embed_scale)
        self.blocks = [self.block(layer) for layer in range(spec.layers)]
        self.norm = standard_norm(spec)
        self.head = Linear(spec.hidden, spec.vocabulary, shard="out")
        self.tied, self.logit_scale, self.logit_cap = spec.tied, spec.logit_scale, spec.logit_cap

    def block(self, layer: int) -> Block:
        """Declare one of the blocks."""
        return standard_block(self.spec, layer)

    def weights(self) -> Mapping[str, WeightSource]:
        """Return the checkpoint's name for each layer; `*` is the block's number on both sides."""
        return standard_weights(self.spec)

    def hidden(self, batch: Batch) -> Value:
        """Compute the last hidden state of every token, normalised."""
        x, residual = self.enter(batch), None
        for block in self.blocks:
            x, residual = block(x, residual, batch)
        return self.norm.add(x, residual)[0]

    def enter(self, batch: Batch) -> Value:
        """Compute the input of the first block."""
        return self.embed(batch.token_ids)

    def logits(self, hidden: Value) -> Value:
        """Compute scores over the vocabulary."""
        scores = self.head(hidden)
        if self.logit_scale != 1.0:
            scores = scores * self.logit_scale
        return scores if self.logit_cap is None else self.ops.soft_cap(scores, self.logit_cap)

    def __call__(self, batch: Batch) -> tuple[Value, Value]:
        """Compute logits and hidden states, each for the rows that the batch asks for."""
        hidden = self.hidden(batch)
        logits = self.logits(self.ops.select_rows(hidden, batch.logits_rows))
        return logits, self.ops.select_rows(hidden, batch.hidden_rows)
