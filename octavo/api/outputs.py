"""The outputs of a request: its text and tokens, and how it ended."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from octavo.client.errors import EngineDeadError
from octavo.core.sampling_params import RequestError
from octavo.core.stats import RequestStats
from octavo.formats.deltas import Delta

__all__ = [
    "CompletionOutput",
    "EngineDeadError",
    "Logprob",
    "Logprobs",
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
    finish_reason: str | None = None  # "stop", "length", "repetition", "abort" or "error"
    stop_reason: int | str | None = None  # the stop string or token; None for an EOS
    error: str | None = None  # the message if finish_reason is "error"
    # The text read by the request's parser: in a stream what is new, else all when it has ended.
    deltas: Sequence[Delta] = ()
    num_reasoning_tokens: int = 0  # among `token_ids`, if a parser finds reasoning
    # Where the deltas of each token begin, and those of an end that comes alone, if the reading
    # keeps them apart.
    starts: Sequence[int] = ()
    # Drafts from the request's prediction so far: those of them that were right, and the others.
    num_accepted_prediction_tokens: int = 0
    num_rejected_prediction_tokens: int = 0

    def finished(self) -> bool:
        """Return whether the continuation has ended."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """A request's prompt, and what was generated so far or, in deltas, since the last output."""

    request_id: str
    prompt: str | None
    prompt_ids: Sequence[int]  # an array, of a request in the core: a list takes nine times as much
    outputs: list[CompletionOutput]
    finished: bool = False
    prompt_logprobs: PromptLogprobs | None = None
    hidden_state: array[float] | None = None  # of the prompt, as `pooling` asks
    num_cached_tokens: int | None = None  # of the prompt, for the first continuation
    metrics: RequestStats | None = None  # of the first continuation: where the time went

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt's tokens in a list, which is made anew each time."""
        return list(self.prompt_ids)

    def account_so_far(self, num_tokens: int) -> None:
        """Complete the first token's statistics when a stop string ends the text.

        The core's own statistics replace them when they come.
        """
        if self.metrics is not None:
            self.metrics = replace(
                self.metrics, num_output_tokens=num_tokens, num_decode_steps=num_tokens - 1
            )
