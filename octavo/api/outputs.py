"""The outputs of a request: its text and tokens, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from octavo.client.client import EngineDeadError
from octavo.core.sampling_params import RequestError
from octavo.core.stats import RequestStats
from octavo.formats.deltas import Delta

__all__ = [
    "CompletionOutput",
    "EngineDeadError",
    "Logprob",
    "Logprobs",
    "PoolingOutput",
    "PromptLogprobs",
    "RequestError",
    "RequestOutput",
]


class Logprob(NamedTuple):
    """One token's log-probability at one position."""

    logprob: float
    rank: int | None = None  # 1 is the most probable
    # The text that the token adds to those before it: empty for the first part of a character,
    # which the token with its last part adds; None with detokenize=False.
    decoded_token: str | None = None


# At each position: the likeliest tokens, with the chosen one among them.
Logprobs = Sequence[dict[int, Logprob]]
# None for the first token, which nothing precedes.
PromptLogprobs = Sequence[dict[int, Logprob] | None]


@dataclass(slots=True)
class CompletionOutput:
    """One of the `n` continuations of a prompt."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None  # "stop", "length", "abort" or "error"
    stop_reason: int | str | None = None  # the stop string or stop token; None for an EOS
    error: str | None = None  # the message if finish_reason is "error"
    # The text read by the request's parser: in a stream what is new, else all when it has ended.
    deltas: Sequence[Delta] = ()
    num_reasoning_tokens: int = 0  # among `token_ids`, if a parser finds reasoning

    def finished(self) -> bool:
        """Return whether the continuation has ended."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """A request's prompt, and what was generated so far or, in deltas, since the last output."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    prompt_logprobs: PromptLogprobs | None = None
    hidden_state: list[float] | None = None  # of the prompt, as `pooling` asks
    num_cached_tokens: int | None = None  # of the prompt, for the first continuation
    metrics: RequestStats | None = None  # of the first continuation: where the time went


@dataclass(slots=True)
class EmbeddingOutput:
    """One prompt's embedding vector."""

    embedding: list[float]


@dataclass(slots=True)
class EmbeddingRequestOutput:
    """The output of `embed` for one prompt."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int | None = None
    finished: bool = True


@dataclass(slots=True)
class PoolingOutput:
    """A pooled hidden state as the model gives it."""

    data: list[float]


@dataclass(slots=True)
class PoolingRequestOutput:
    """The output of `encode` for one prompt."""

    request_id: str
    outputs: PoolingOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int | None = None
    finished: bool = True
