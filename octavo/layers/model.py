"""The bases of all models: what every model has, and the norm and the head of a decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from octavo.layers.block import Block
from octavo.layers.embedding import Embedding
from octavo.layers.features import HiddenStates
from octavo.layers.linear import Linear
from octavo.layers.module import Batch, Module, Value
from octavo.layers.norm import LayerNorm, RMSNorm
from octavo.layers.spec import ModelSpec
from octavo.layers.standard import standard_block, standard_norm, standard_weights
from octavo.layers.weight_names import WeightSource


class DraftBlock(NamedTuple):
    """The rows of a pass that proposes several tokens at once: the last token, and masks behind it.

    The rows of the masks propose the tokens in their places.
    """

    rows: int
    mask: int  # the id of the token that stands for one to be proposed

    @property
    def num_tokens(self) -> int:
        """The tokens that a pass proposes, at most."""
        return self.rows - 1


class Model(Module):
    """A model of any kind. A family names the checkpoint's tensors and declares the layers."""

    # Checkpoint tensors that no layer uses; `*` matches anything.
    ignored: tuple[str, ...] = ()
    # Prefixes that some checkpoints use, with this family's own prefix; the first match applies.
    renames: tuple[tuple[str, str], ...] = ()

    spec: ModelSpec
    embed: Embedding
    head: Linear | None = None  # None: the model gives hidden states alone
    tied: bool = False  # the head's weight is the embedding's
    features: HiddenStates | None = None  # what it reads of another model's hidden states
    draft_block: DraftBlock | None = None  # how it proposes; None: a token in each pass

    @property
    def programs(self) -> tuple[Model, ...]:
        """The models whose passes propose a further model's tokens, in order; the last goes on."""
        return (self,)

    def weights(self) -> Mapping[str, WeightSource]:
        """Return the checkpoint's name for each layer; `*` is the block's number on both sides."""
        raise NotImplementedError

    def hidden(self, batch: Batch) -> Value:
        """Compute the last hidden state of every token, normalised."""
        raise NotImplementedError

    def logits(self, hidden: Value) -> Value:
        """Compute scores over the vocabulary; only a model with a head can."""
        raise NotImplementedError

    def __call__(self, batch: Batch) -> tuple[Value | None, Value]:
        """Compute logits and hidden states, each for the rows that the batch asks for."""
        hidden, logits = self.hidden(batch), None
        if self.head is not None:
            logits = self.logits(self.ops.select_rows(hidden, batch.logits_rows))
        return logits, self.ops.select_rows(hidden, batch.hidden_rows)


class CausalLM(Model):
    """A decoder, with a head over the vocabulary unless the spec says that it has none."""

    blocks: Sequence[Block]
    norm: RMSNorm | LayerNorm
    logit_scale: float = 1.0
    logit_cap: float | None = None

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.embed = Embedding(spec.vocabulary, spec.hidden, spec.embed_scale)
        self.blocks = [self.block(layer) for layer in range(spec.layers)]
        self.norm = standard_norm(spec)
        if spec.has_head:
            self.head = Linear(spec.hidden, spec.vocabulary, shard="out")
        self.tied = spec.tied and spec.has_head
        self.logit_scale, self.logit_cap = spec.logit_scale, spec.logit_cap

    def block(self, layer: int) -> Block:
        """Declare one of the blocks."""
        return standard_block(self.spec, layer)

    def weights(self) -> Mapping[str, WeightSource]:
        return standard_weights(self.spec)

    def hidden(self, batch: Batch) -> Value:
        x, residual = self.enter(batch), None
        for block in self.blocks:
            x, residual = block(x, residual, batch)
        return self.norm.add(x, residual)[0]

    def enter(self, batch: Batch) -> Value:
        """Compute the input of the first block."""
        return self.embed(batch.token_ids)

    def logits(self, hidden: Value) -> Value:
        assert self.head is not None, "this model has no head"
        scores = self.head(hidden)
        if self.logit_scale != 1.0:
            scores = scores * self.logit_scale
        return scores if self.logit_cap is None else self.ops.soft_cap(scores, self.logit_cap)
