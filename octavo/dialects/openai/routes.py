"""The part of the table of routes that has OpenAI's, and the same under other paths.

Anthropic's clients ask for the models at the same path, so that answers have the fields of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

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
from octavo.dialects.openai.tokens import detokenize, tokenize
from octavo.serving.exchange import Exchange
from octavo.serving.generate import generating
from octavo.transport.route import Route


def _card(exchange: Exchange, name: str) -> dict[str, Any]:
    server = exchange.server
    started = datetime.fromtimestamp(server.started_at, UTC)
    return {
        "id": name,
        "object": "model",
        "created": server.started_at,
        "owned_by": "octavo",
        "root": server.llm.facts.name,
        "parent": None,
        "max_model_len": server.llm.facts.longest_tokens,
        "permission": [],
        "type": "model",
        "display_name": name,
        "created_at": started.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": server.llm.facts.longest_tokens,
    }


async def _models(exchange: Exchange) -> None:
    """Handle GET /v1/models: list the model under all its names."""
    names = exchange.server.model_names
    await exchange.respond_json(
        {
            "object": "list",
            "data": [_card(exchange, name) for name in names],
            "has_more": False,
            "first_id": names[0],
            "last_id": names[-1],
        }
    )


async def _model(exchange: Exchange) -> None:
    """Handle GET /v1/models/{id}: describe the model of that name."""
    exchange.server.context.check_model(exchange.parameter)
    await exchange.respond_json(_card(exchange, exchange.parameter))


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
    Route("GET", "/v1/models", _models, "The served models."),
    Route("GET", "/models", _models, "The same as /v1/models, for llama.cpp's clients."),
    Route("GET", "/v1/models/{id}", _model, "One model."),
    Route(
        *("POST", "/tokenize", tokenize, "The token ids of a text or a conversation."),
        *(TokenizeRequest, TokenizeResponse),
    ),
    Route(
        *("POST", "/detokenize", detokenize, "The text of token ids."),
        *(DetokenizeRequest, DetokenizeResponse),
    ),
)
