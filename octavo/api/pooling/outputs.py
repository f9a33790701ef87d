"""The outputs of requests that generate nothing: vectors, classes and scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar


@dataclass(slots=True)
class EmbeddingOutput:
    """One prompt's embedding vector."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """The number of its values."""
        return len(self.embedding)


@dataclass(slots=True)
class PoolingOutput:
    """A pooled hidden state, or one for each token of the prompt."""

    data: list[float] | list[list[float]]


@dataclass(slots=True)
class ClassificationOutput:
    """A value for each class: its probability, or the classifier's own number."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.probs)


@dataclass(slots=True)
class ScoringOutput:
    """The score of two texts: how well they fit each other."""

    score: float


T = TypeVar("T", EmbeddingOutput, PoolingOutput, ClassificationOutput, ScoringOutput)


@dataclass(slots=True)
class PooledRequestOutput(Generic[T]):
    """The output of a request that generates nothing."""

    request_id: str
    outputs: T
    prompt_token_ids: list[int]
    num_cached_tokens: int | None = None
    finished: bool = True


class EmbeddingRequestOutput(PooledRequestOutput[EmbeddingOutput]):
    """The output of `embed` for one prompt."""


class PoolingRequestOutput(PooledRequestOutput[PoolingOutput]):
    """The output of `encode` for one prompt."""


class ClassificationRequestOutput(PooledRequestOutput[ClassificationOutput]):
    """The output of `classify` for one prompt."""


class ScoringRequestOutput(PooledRequestOutput[ScoringOutput]):
    """The output of `score` for one pair of texts."""
