"""The outputs of the Python API for requests that generate nothing."""

from __future__ import annotations

from typing import Any, TypeVar

from octavo.api.outputs import RequestOutput
from octavo.api.pooling.outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PooledRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from octavo.api.pooling.tasks import Wanted

K = TypeVar("K", bound=PooledRequestOutput[Any])


def pooled(output: RequestOutput, wanted: Wanted) -> PoolingRequestOutput:
    """Return a prompt's vector, or the vectors of its tokens."""
    rows = list(wanted.rows(output))
    data = PoolingOutput(rows if wanted.is_each_token else rows[0])
    return _with(PoolingRequestOutput, output, data)


def embedded(output: RequestOutput, wanted: Wanted) -> EmbeddingRequestOutput:
    """Return a prompt's vector as an embedding."""
    return _with(EmbeddingRequestOutput, output, EmbeddingOutput(wanted.vector(output)))


def classified(output: RequestOutput, wanted: Wanted) -> ClassificationRequestOutput:
    """Return the values of a prompt's classes."""
    return _with(ClassificationRequestOutput, output, ClassificationOutput(wanted.vector(output)))


def scored(output: RequestOutput, wanted: Wanted) -> ScoringRequestOutput:
    """Return the score that a cross-encoder has given to a pair."""
    return _with(ScoringRequestOutput, output, ScoringOutput(wanted.vector(output)[0]))


def compared(first: RequestOutput, second: RequestOutput, wanted: Wanted) -> ScoringRequestOutput:
    """Return the similarity of two embedded texts as their score."""
    return ScoringRequestOutput(
        f"{first.request_id}_{second.request_id}",
        ScoringOutput(wanted.similarity(wanted.vector(first), wanted.vector(second))),
        [*first.prompt_token_ids, *second.prompt_token_ids],
        (first.num_cached_tokens or 0) + (second.num_cached_tokens or 0),
        first.finished and second.finished,
    )


def _with(kind: type[K], output: RequestOutput, data: Any) -> K:
    return kind(
        output.request_id,
        data,
        output.prompt_token_ids,
        output.num_cached_tokens,
        output.finished,
    )
