"""The part of the table of routes that has vLLM's own."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.dialects.anthropic.dialect import ANTHROPIC
from octavo.dialects.anthropic.schema import MessagesRequest
from octavo.dialects.embeddings.schema import ScoreResponse
from octavo.dialects.openai.schema.chat import ChatRequest, ChatResponse
from octavo.dialects.openai.schema.completion import CompletionRequest
from octavo.dialects.responses.dialect import RESPONSES
from octavo.dialects.responses.schema import ResponsesRequest
from octavo.dialects.vllm import batch, scoring, tokens
from octavo.dialects.vllm.abort import abort
from octavo.dialects.vllm.derender import derender_chat, derender_completion
from octavo.dialects.vllm.derender_schema import (
    DerenderChatRequest,
    DerenderCompletionRequest,
    DerenderedChat,
    DerenderedChatChunk,
    DerenderedCompletion,
    DerenderedCompletionChunk,
)
from octavo.dialects.vllm.invocations import invoke
from octavo.dialects.vllm.render import (
    render_chat,
    render_completion,
    render_messages,
    render_responses,
)
from octavo.dialects.vllm.schema import (
    BatchChatRequest,
    RenderedRequest,
    ScoringRequest,
    TokensChunk,
    TokensRequest,
    TokensResponse,
)
from octavo.dialects.vllm.state import load, tokenizer_info
from octavo.serving import status_routes
from octavo.serving.ending import AbortRequests
from octavo.serving.generate import generating
from octavo.transport.route import Route

VLLM_ROUTES: Sequence[Route] = (
    Route(
        *("POST", "/v1/chat/completions/batch"),
        generating(BatchChatRequest, batch.translate),
        "Answer several conversations alike.",
        *(BatchChatRequest, ChatResponse),
    ),
    Route(
        *("POST", "/v1/chat/completions/render", render_chat),
        "The request of a conversation as token ids, without running it.",
        *(ChatRequest, RenderedRequest),
    ),
    Route(
        *("POST", "/v1/completions/render", render_completion),
        "The requests of prompts as token ids, in a list, without running them.",
        CompletionRequest,
    ),
    Route(
        *("POST", "/v1/responses/render", render_responses),
        "The request of the Responses API as token ids, without running it.",
        *(ResponsesRequest, RenderedRequest),
        dialect=RESPONSES,
    ),
    Route(
        *("POST", "/v1/messages/render", render_messages),
        "The request of a conversation in Anthropic's dialect as token ids, without running it.",
        *(MessagesRequest, RenderedRequest),
        dialect=ANTHROPIC,
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
        *("POST", "/generative_scoring"),
        generating(ScoringRequest, scoring.translate),
        "Items scored by the probability of a token behind a query.",
        *(ScoringRequest, ScoreResponse),
    ),
    Route(
        *("POST", "/inference/v1/abort_requests", abort),
        "End requests of the same key; their clients get the tokens so far.",
        AbortRequests,
    ),
    Route(
        "POST", "/invocations", invoke, "Any of chat, text, embeddings and scores, for SageMaker."
    ),
    Route("GET", "/tokenizer_info", tokenizer_info, "The tokenizer's configuration."),
    Route("GET", "/load", load, "The number of requests that wait or run."),
    Route("GET", "/ping", status_routes.ready, "The same as /health/ready, for SageMaker."),
    Route("POST", "/ping", status_routes.ready, "The same as /health/ready, for SageMaker."),
)
