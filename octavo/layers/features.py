"""What a drafter reads of a model's hidden states."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.layers.kv_spec import KVLayer, KVSpec
from octavo.layers.linear import Linear
from octavo.layers.module import Module, Value


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


HiddenStates = Features | LastStates
