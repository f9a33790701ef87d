"""The part of the table of routes that has OpenAI's, and the same under other paths."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.dialects.common.schema.chat import ChatChunk, ChatRequest, ChatResponse
from octavo.dialects.common.schema.completion import (
    CompletionChunk,
    CompletionRequest,
    CompletionResponse,
)
from octavo.dialects.common.schema.tokens import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from octavo.dialects.openai import batch, chat, completions
from octavo.dialects.openai.batch import BatchChatRequest
from octavo.dialects.openai.models import model, models
from octavo.dialects.openai.tokens import detokenize, tokenize
from octavo.serving.generate import generating
from octavo.transport.route import Route

OPENAI_ROUTES: Sequence[Route] = (
    Route(
        *("POST", "/v1/completions"),
        generating(CompletionRequest, completions.translate),
        "Continue texts or token ids.",
        *(CompletionRequest, CompletionResponse, CompletionChunk),
    ),
    Route(
        *("POST", "/v1/chat/completions"),
        generating(ChatRequest, chat.translate),
        "Answer a conversation.",
        *(ChatRequest, ChatResponse, ChatChunk),
    ),
    Route(
        *("POST", "/chat/completions", generating(ChatRequest, chat.translate)),
        "The same as /v1/chat/completions, for llama.cpp's clients.",
        *(ChatRequest, ChatResponse, ChatChunk),
    ),
    Route(
        *("POST", "/v1/chat/completions/batch"),
        generating(BatchChatRequest, batch.translate),
        "Answer several conversations alike.",
        *(BatchChatRequest, ChatResponse),
    ),
    Route("GET", "/v1/models", models, "The served models."),
    Route("GET", "/models", models, "The same as /v1/models, for llama.cpp's clients."),
    Route("GET", "/v1/models/{id}", model, "One model."),
    Route(
        *("POST", "/tokenize", tokenize, "The token ids of a text or a conversation."),
        *(TokenizeRequest, TokenizeResponse),
    ),
    Route(
        *("POST", "/detokenize", detokenize, "The text of token ids."),
        *(DetokenizeRequest, DetokenizeResponse),
    ),
)
