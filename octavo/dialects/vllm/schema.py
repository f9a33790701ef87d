"""The requests and responses of vLLM's own routes."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from octavo.core.config import MAX_PRIORITY
from octavo.dialects.common.parse_context import FIELD, ParseContext, without_variables
from octavo.dialects.common.schema.chat import AnswerMessage
from octavo.dialects.common.schema.completion import PromptTokens
from octavo.dialects.common.schema.rendered import TokenSampling
from octavo.dialects.common.schema.sampling import (
    Name,
    StreamOptions,
)
from octavo.dialects.common.schema.unsupported import OF_BEAMS, RULES
from octavo.dialects.common.schema.usage import Usage
from octavo.observe.request_timing import RequestTiming
from octavo.serving.schema.rules import FieldRules, Unsupported


def _off(value: Any) -> bool:
    return value is False or value in (None, [], {})


_MEDIA = Unsupported(_off, "prompts have no media; leave it out", "null")
_OF_TOKENS = {
    **RULES.unsupported,
    **OF_BEAMS,
    "features": _MEDIA,
    "content_parts": _MEDIA,
    "vllm_xargs": Unsupported(_off, "write it as sampling_params.extra_args", "{}"),
}


class TokensRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """A request whose prompt and answer are token ids, as the render routes return it."""

    rules: ClassVar[FieldRules] = replace(
        RULES,
        open=frozenset({"sampling_params", FIELD}),
        unsupported=_OF_TOKENS,
        of_prompts={
            "token_ids": lambda request: [],
            "sampling_params": lambda request: structs.replace(
                request.sampling_params, prediction=None
            ),
            FIELD: lambda request: without_variables(request.parse_context),
        },
        ignored={
            **RULES.ignored,
            "prompt_text": "the tokens are what is continued",
            "token_offsets": "no part of an answer is made of them",
            "assistant_tokens_mask": "no part of an answer is made of it",
            "reasoning_parser_kwargs": "the end of the prompt shows what its template was given",
        },
    )
    token_ids: PromptTokens
    sampling_params: TokenSampling
    model: Annotated[str, Meta(max_length=512)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    request_id: Name | None = None  # the request's, if no x-request-id header names it
    # text: the answer's text too; derender: its message, with reasoning and calls apart.
    output_mode: Literal["tokens", "text", "derender"] | None = None
    parse_context: ParseContext | None = None  # of the conversation, as its render has it
    # true: a shape holds from the first token; else behind the reasoning, as in chats.
    reasoning_ended: bool | None = None
    return_token_ids: bool | None = None  # the prompt's, in the answer


class IdLogprob(Struct, kw_only=True, gc=False):
    """A token's log-probability, and its place among all; beside a text, the token's text."""

    logprob: float
    token_id: int | UnsetType = UNSET
    rank: int | UnsetType | None = UNSET  # of the likeliest: 1
    token: str | UnsetType = UNSET
    bytes: list[int] | UnsetType = UNSET


class IdPosition(IdLogprob, kw_only=True, gc=False):
    """The log-probabilities at a position: the generated token's, and the likeliest ones."""

    top_logprobs: list[IdLogprob]


class IdLogprobs(Struct, kw_only=True):
    """The log-probabilities of an answer: by token id, or beside a text in the form of chats."""

    content: list[IdPosition]


class TokensChoice(Struct, kw_only=True):
    """One of the `n` answers."""

    index: int
    token_ids: list[int] | None  # null: they would show the reasoning that is left out
    text: str | UnsetType = UNSET
    message: AnswerMessage | UnsetType = UNSET
    logprobs: IdLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class TokensResponse(Struct, kw_only=True):
    """The response of a request without a stream."""

    request_id: str
    choices: list[TokensChoice]
    usage: Usage
    model: str
    created: int
    object: str = "token_generation"
    output_mode: str = "tokens"
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    metrics: RequestTiming | UnsetType = UNSET


class TokensChunk(Struct, kw_only=True):
    """The payload of one event of a stream."""

    request_id: str
    choices: list[TokensChoice]
    object: str = "token_generation.chunk"
    output_mode: str = "tokens"
    prompt_token_ids: list[int] | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    metrics: RequestTiming | UnsetType = UNSET
    explain: dict[str, Any] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET
