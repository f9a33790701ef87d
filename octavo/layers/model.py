"""What every language model has: its family's names, and the way from hidden to logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from octavo.layers.block import Block
from octavo.layers.embedding import Embedding
from octavo.layers.linear import Linear
from octavo.layers.module import Batch, Module, Value
from octavo.layers.norm import LayerNorm, RMSNorm
from octavo.layers.weight_names import WeightSource


class CausalLM(Module):
    """A decoder. A family sets the class attributes, makes the layers, and says `weights`."""

    architectures: ClassVar[tuple[str, ...]] = ()  # the names that config.json gives it
    ignored: ClassVar[tuple[str, ...]] = ()  # checkpoint tensors that mean nothing (`*`: anything)
    # How names begin in some checkpoints, and how in the others; the first that fits is taken.
    renames: ClassVar[tuple[tuple[str, str], ...]] = ()

    embed: Embedding
    blocks: Sequence[Block]
    norm: RMSNorm | LayerNorm
    head: Linear
    tied: bool = False  # the head's weight is the embedding's
    logit_scale: float = 1.0
    logit_cap: float | None = None

    def weights(self) -> Mapping[str, WeightSource]:
        """Ours ← the checkpoint's. `*` is a block's number, the same on both sides."""
        raise NotImplementedError

    def hidden(self, batch: Batch) -> Value:
        """The last hidden state of every token, normalised."""
        x, residual = self.enter(batch), None
        for block in self.blocks:
            x, residual = block(x, residual, batch)
        return self.norm.add(x, residual)[0]

    def enter(self, batch: Batch) -> Value:
        """What the first block reads."""
        return self.embed(batch.token_ids)

    def logits(self, hidden: Value) -> Value:
        """Scores over the vocabulary."""
        scores = self.head(hidden)
        if self.logit_scale != 1.0:
            scores = scores * self.logit_scale
        return scores if self.logit_cap is None else self.ops.soft_cap(scores, self.logit_cap)

    def __call__(self, batch: Batch) -> tuple[Value, Value]:
        """Logits and hidden states, each of the rows they are wanted of."""
        hidden = self.hidden(batch)
        logits = self.logits(self.ops.select_rows(hidden, batch.logits_rows))
        return logits, self.ops.select_rows(hidden, batch.hidden_rows)
