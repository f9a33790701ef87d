"""Tables that are looked up by token or by position."""

from __future__ import annotations

from octavo.layers.module import Module, Part, TensorDeclaration, Value


class Embedding(Module):
    """A row for each token of the vocabulary, split over ranks by rows."""

    weight: Value
    first: int = 0  # the token of the first row, on one of several ranks

    def __init__(self, vocabulary: int, hidden: int, scale: float = 1.0) -> None:
        self.vocabulary = vocabulary
        self.hidden = hidden
        self.scale = scale

    def tensors(self) -> dict[str, TensorDeclaration]:
        rows = Part("vocabulary", self.vocabulary)
        return {"weight": TensorDeclaration((self.vocabulary, self.hidden), split=rows)}

    def __call__(self, token_ids: Value) -> Value:
        rows = self.ops.embed(token_ids, self.weight)
        return rows if self.scale == 1.0 else rows * self.scale


class PositionEmbedding(Module):
    """A learned row for each position, as in GPT-2."""

    weight: Value

    def __init__(self, positions: int, hidden: int) -> None:
        self.positions = positions
        self.hidden = hidden

    def tensors(self) -> dict[str, TensorDeclaration]:
        return {"weight": TensorDeclaration((self.positions, self.hidden))}

    def __call__(self, positions: Value) -> Value:
        return self.ops.embed(positions, self.weight)


class TypeEmbedding(Module):
    """A learned row for each text of a pair, as in BERT."""

    weight: Value

    def __init__(self, types: int, hidden: int) -> None:
        self.types = types
        self.hidden = hidden

    def tensors(self) -> dict[str, TensorDeclaration]:
        return {"weight": TensorDeclaration((self.types, self.hidden))}

    def __call__(self, types: Value) -> Value:
        return self.ops.embed(types, self.weight)
