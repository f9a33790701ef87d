"""The part of the table of routes that has vLLM's own."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.dialects.common.dialect import CHAT_ID
from octavo.dialects.common.render import rendering
from octavo.dialects.common.schema.chat import ChatRequest
from octavo.dialects.common.schema.completion import CompletionRequest
from octavo.dialects.common.schema.rendered import RenderedRequest
from octavo.dialects.vllm import tokens
from octavo.dialects.vllm.derender import derender_chat, derender_completion
from octavo.dialects.vllm.derender_schema import (
    DerenderChatRequest,
    DerenderCompletionRequest,
    DerenderedChat,
    DerenderedChatChunk,
    DerenderedCompletion,
    DerenderedCompletionChunk,
)
from octavo.dialects.vllm.render import (
    render_completion,
    translate_chat,
)
from octavo.dialects.vllm.schema import TokensChunk, TokensRequest, TokensResponse
from octavo.dialects.vllm.state import abort, load, tokenizer_info
from octavo.serving import status_routes
from octavo.serving.ending import AbortRequests
from octavo.serving.generate import generating
from octavo.transport.route import Route

VLLM_ROUTES: Sequence[Route] = (
    Route(
        *("POST", "/v1/chat/completions/render", rendering(ChatRequest, translate_chat, CHAT_ID)),
        "The request of a conversation as token ids, without running it.",
        *(ChatRequest, RenderedRequest),
    ),
    Route(
        *("POST", "/v1/completions/render", render_completion),
        "The requests of prompts as token ids, in a list, without running them.",
        CompletionRequest,
    ),
    Route(
        *("POST", "/v1/chat/completions/derender", derender_chat),
        "Make answers to a conversation of tokens that another server has generated.",
        *(DerenderChatRequest, DerenderedChat, DerenderedChatChunk),
    ),
    Route(
        *("POST", "/v1/completions/derender", derender_completion),
        "Make continuations of tokens that another server has generated.",
        *(DerenderCompletionRequest, DerenderedCompletion, DerenderedCompletionChunk),
    ),
    Route(
        *("POST", "/inference/v1/generate"),
        generating(TokensRequest, tokens.translate),
        "Continue token ids with token ids.",
        *(TokensRequest, TokensResponse, TokensChunk),
    ),
    Route(
        *("POST", "/inference/v1/abort_requests", abort),
        "End requests of the same key; their clients get the tokens so far.",
        AbortRequests,
    ),
    Route("GET", "/tokenizer_info", tokenizer_info, "The tokenizer's configuration."),
    Route("GET", "/load", load, "The number of requests that wait or run."),
    Route("GET", "/ping", status_routes.ready, "The same as /health/ready, for SageMaker."),
    Route("POST", "/ping", status_routes.ready, "The same as /health/ready, for SageMaker."),
)
