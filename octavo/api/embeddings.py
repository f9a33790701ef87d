"""Prompts as vectors: the request for one, and the user's output."""

from __future__ import annotations

import math

from octavo.api.outputs import (
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    RequestError,
    RequestOutput,
)
from octavo.core.pooling import Pooling, PoolingKind
from octavo.core.sampling_params import RequestOutputKind, SamplingParams


def asking_for(pooling: Pooling | PoolingKind) -> SamplingParams:
    """Return the parameters of a request that needs only its prompt's hidden states."""
    return SamplingParams(
        max_tokens=0,
        temperature=0.0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        pooling=Pooling(pooling) if isinstance(pooling, str) else pooling,
    )


def pooled(output: RequestOutput) -> PoolingRequestOutput:
    """Return the vector as the model gives it."""
    return PoolingRequestOutput(
        output.request_id,
        PoolingOutput(_vector(output)),
        output.prompt_token_ids,
        output.num_cached_tokens,
        output.finished,
    )


def embedded(output: RequestOutput, normalize: bool) -> EmbeddingRequestOutput:
    """Return the vector as an embedding, normalised if wanted."""
    vector = _vector(output)
    return EmbeddingRequestOutput(
        output.request_id,
        EmbeddingOutput(of_length_one(vector) if normalize else vector),
        output.prompt_token_ids,
        output.num_cached_tokens,
        output.finished,
    )


def of_length_one(values: list[float]) -> list[float]:
    """Scale a vector to length one; a zero vector stays as it is."""
    length = math.hypot(*values)
    return [value / length for value in values] if length else values


def _vector(output: RequestOutput) -> list[float]:
    if output.hidden_state is None:
        raise RequestError(
            f"request {output.request_id} was aborted before the whole of its prompt was computed"
        )
    return output.hidden_state
