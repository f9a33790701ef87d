"""The request and the responses of /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import UNSET, Meta, Struct, UnsetType

from octavo.dialects.common.schema.sampling import INT32, CommonRequest, TokenId
from octavo.dialects.common.schema.usage import Usage
from octavo.observe.request_timing import RequestTiming
from octavo.serving.schema.prompts import MAX_PROMPT_ITEMS, prompts_schema

PromptTokens = Annotated[list[TokenId], Meta(max_length=MAX_PROMPT_ITEMS)]

Nothing = Annotated[bool, Meta(extra_json_schema={"const": False})]


class CompletionRequest(CommonRequest, kw_only=True):
    """The request: a text, token ids, or several of either, to continue."""

    schema: ClassVar[dict[str, Any]] = {"allOf": [prompts_schema("prompt")]}
    prompt: str | Annotated[list[str | TokenId | PromptTokens], Meta(max_length=MAX_PROMPT_ITEMS)]
    # The likeliest tokens beside the chosen one. Clients of chats send false, which asks for none.
    logprobs: Annotated[int, Meta(ge=-1, le=INT32)] | Nothing | None = None
    echo: bool | None = None  # begin the text with the prompt
    suffix: str | None = None  # the text after the answer, for models that fill in
    add_special_tokens: bool = True


class CompletionLogprobs(Struct, kw_only=True):
    """Log-probabilities for each token."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(Struct, kw_only=True):
    """One continuation of a prompt."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_text: str | None = None
    token_ids: list[int] | None = None


class CompletionResponse(Struct, kw_only=True):
    """The response of a request without a stream; what does not apply is null, not missing."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    object: str = "text_completion"
    service_tier: str | None = None
    system_fingerprint: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    metrics: RequestTiming | UnsetType = UNSET
    explain: dict[str, Any] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class CompletionChunkChoice(Struct, kw_only=True):
    """The new part of one of the continuations."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class CompletionChunk(Struct, kw_only=True):
    """The payload of one event of a stream."""

    id: str
    created: int
    model: str
    choices: list[CompletionChunkChoice]
    object: str = "text_completion"
    system_fingerprint: str | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    metrics: RequestTiming | UnsetType = UNSET
    explain: dict[str, Any] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET
