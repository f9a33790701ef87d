"""The numbers of tokens of a request."""

from __future__ import annotations

from msgspec import Struct


class PromptTokensDetails(Struct, kw_only=True):
    """The prompt tokens, by kind."""

    cached_tokens: int = 0


class CompletionTokensDetails(Struct, kw_only=True, frozen=True):
    """The generated tokens, by kind; where reasoning is not separated, none counts as such."""

    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(Struct, kw_only=True):
    """The tokens of the prompt, and of all continuations together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails = CompletionTokensDetails()


class InputTokensResponse(Struct, kw_only=True):
    """The length of a prompt."""

    input_tokens: int
    object: str = "response.input_tokens"
