"""The part of the table of routes that has OpenAI's, and the same under other paths.

Anthropic's clients ask for the models at the same path, so that answers have the fields of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from octavo.dialects.openai import batch, completions, timed_chat
from octavo.dialects.openai.batch import BatchChatRequest
from octavo.dialects.openai.tokens import detokenize, tokenize
from octavo.serving.adapters.registry import Adapter
from octavo.serving.adapters.selection import known, unknown
from octavo.serving.bounds.turns import Turns
from octavo.serving.exchange import Exchange
from octavo.serving.generate import generating
from octavo.serving.schema.model_names import AskedModel
from octavo.serving.server import Server
from octavo.transport.route import Route


def card(server: Server, name: str, adapter: Adapter | None = None) -> dict[str, Any]:
    """Return what a list says of one name; an adapter has a place and a parent of its own."""
    root, parent = server.llm.facts.name, None
    if adapter is not None:
        root, parent = str(adapter.path), adapter.base_model_name or server.model_name
    started = datetime.fromtimestamp(server.started_at, UTC)
    return {
        "id": name,
        "object": "model",
        "created": server.started_at,
        "owned_by": "octavo",
        "root": root,
        "parent": parent,
        "max_model_len": server.llm.facts.longest_tokens,
        "permission": [],
        "type": "model",
        "display_name": name,
        "created_at": started.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": server.llm.facts.longest_tokens,
    }


async def _models(exchange: Exchange) -> None:
    """Handle GET /v1/models: list the model under all its names, and the adapters."""
    server = exchange.server
    cards = [card(server, name) for name in server.model_names]
    turns = Turns()
    for adapter in server.adapters:
        await turns.take()
        cards.append(card(server, adapter.name, adapter))
    await exchange.respond_json(listed(cards))


def listed(cards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a list of models with all of them."""
    return {
        "object": "list",
        "data": cards,
        "has_more": False,
        "first_id": cards[0]["id"],
        "last_id": cards[-1]["id"],
    }


async def _model(exchange: Exchange) -> None:
    """Handle GET /v1/models/{id}: describe the model or the adapter of that name."""
    server, asked = exchange.server, AskedModel((exchange.parameter,))
    selected = known(server, asked)
    if selected is None:
        raise unknown(server, asked)
    is_adapter = selected.name == exchange.parameter
    adapter = selected.adapter if is_adapter else None
    await exchange.respond_json(card(server, exchange.parameter, adapter))


OPENAI_ROUTES: Sequence[Route] = (
    Route(
        *("POST", "/v1/completions"),
        generating(CompletionRequest, completions.translate),
        "Continue texts or token ids.",
        *(CompletionRequest, CompletionResponse, CompletionChunk),
    ),
    Route(
        *("POST", "/v1/chat/completions"),
        generating(ChatRequest, timed_chat.translate),
        "Answer a conversation.",
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
