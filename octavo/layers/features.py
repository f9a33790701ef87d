"""What a drafter reads of a model's hidden states."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.layers.attention import ContextAttention
from octavo.layers.kv_spec import KVLayer, KVSpec
from octavo.layers.linear import Linear
from octavo.layers.module import Batch, Module, Value
from octavo.layers.norm import RMSNorm


class FeatureRows(KVLayer):
    """A row for each position, which one model keeps and another reads a position later.

    The reader's row of a position follows from the tokens up to its own, as all that is cached
    must: it reads its own token, and what the other model has computed of the ones before.
    """

    def __init__(self, width: int) -> None:
        self.width = width

    @property
    def kv_spec(self) -> KVSpec:
        return KVSpec("row", 1, self.width)

    def keep(self, x: Value) -> None:
        """Keep rows, each in the place of its position."""
        self.ops.keep(x, self)

    def before(self) -> Value:
        """Return for each token what is kept of the position before; zeros for the first one."""
        return self.ops.recall(self)


class Features(Module):
    """Rows that a model makes of its own hidden states for a drafter, and keeps.

    It is the sum of projections, one of each layer's input; or, without layers, the last hidden
    state, normalised. `keep_features` of octavo/program/passes makes this a part of the model.
    """

    def __init__(self, width: int, layers: Sequence[int] = (), inputs: int = 0) -> None:
        self.layers = tuple(layers)
        self.projections = [Linear(inputs, width) for _ in layers]
        self.rows = FeatureRows(width)


class LastStates(Module):
    """The last hidden states, normalised, from which tokens are drawn, for a drafter of that step.

    Nothing of them is kept. The drafter has a row for each such token.
    """

    def __init__(self, width: int) -> None:
        self.width = width

    def __call__(self) -> Value:
        """Return the state from which each row's token was drawn."""
        return self.ops.given(self.width)


class Context(Module):
    """Keys and values that a model makes of its own hidden states for a drafter's attentions.

    The sum of projections, one of each layer's input, is normalised; of that come the keys and
    values of each attention, in the place of the position. `keep_features` of octavo/program/passes
    makes this a part of the model: so the drafter lacks nothing of a text that the model has read.
    """

    def __init__(
        self,
        layers: Sequence[int],
        inputs: int,
        norm: RMSNorm,
        readers: Sequence[tuple[Linear, ContextAttention]],
    ) -> None:
        self.layers = tuple(layers)
        self.projections = [Linear(inputs, norm.size) for _ in layers]
        self.norm = norm
        self.readers = tuple(readers)  # the projections and attentions of the drafter's layers

    def keep(self, total: Value, batch: Batch) -> None:
        """Keep what the drafter reads of the sum of the projections."""
        x = self.norm(total)
        for project, attention in self.readers:
            attention.keep(project(x), batch)


HiddenStates = Features | LastStates | Context
