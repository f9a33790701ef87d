"""The table of all routes, from which they are served, documented and tested."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from octavo.server import status_routes
from octavo.server.http.exchange import Exchange, encode
from octavo.server.http.route import Route
from octavo.server.openai.chat import chat
from octavo.server.openai.completions import completions
from octavo.server.openai.models import model, models
from octavo.server.openai.tokens import detokenize, tokenize
from octavo.server.openapi import document
from octavo.server.schema.chat import ChatChunk, ChatRequest, ChatResponse
from octavo.server.schema.completion import CompletionRequest, CompletionResponse
from octavo.server.schema.tokens import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)

# The page has no script, and may load nothing.
_PAGE_HEADERS = (
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),
    (b"x-content-type-options", b"nosniff"),
)


async def openapi(exchange: Exchange) -> None:
    """Respond with the OpenAPI document."""
    await exchange.respond(encode(document(ROUTES)))


async def documentation(exchange: Exchange) -> None:
    """Respond with a page that lists the routes."""
    lines = "\n".join(f"{each.method:5}{each.path:31}{each.summary}" for each in ROUTES)
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Octavo</title>'
        "<style>:root{color-scheme:light dark}</style><h1>Octavo</h1><p>Send an API key as "
        "<code>Authorization: Bearer KEY</code>. All fields and their bounds are in "
        f"<code>/openapi.json</code>.<pre>{escape(lines)}</pre></html>"
    )
    kind = b"text/html; charset=utf-8"
    await exchange.respond(page.encode(), kind=kind, headers=_PAGE_HEADERS)


ROUTES: Sequence[Route] = (
    Route(
        *("POST", "/v1/completions", completions, "Continue texts or token ids."),
        *(CompletionRequest, CompletionResponse, CompletionResponse),
    ),
    Route(
        *("POST", "/v1/chat/completions", chat, "Answer a conversation."),
        *(ChatRequest, ChatResponse, ChatChunk),
    ),
    Route("GET", "/v1/models", models, "The served models."),
    Route(
        "GET", "/v1/requests/{id}/explain", status_routes.explain, "Where a request spent its time."
    ),
    Route("GET", "/v1/models/{id}", model, "One model."),
    Route(
        *("POST", "/tokenize", tokenize, "The token ids of a text or a conversation."),
        *(TokenizeRequest, TokenizeResponse),
    ),
    Route(
        *("POST", "/detokenize", detokenize, "The text of token ids."),
        *(DetokenizeRequest, DetokenizeResponse),
    ),
    Route("GET", "/version", status_routes.version, "The server's version."),
    Route("GET", "/health/live", status_routes.live, "Whether the event loop runs."),
    Route("GET", "/health/ready", status_routes.ready, "Whether requests are served."),
    Route("GET", "/health", status_routes.ready, "The same as /health/ready."),
    Route("GET", "/metrics", status_routes.metrics, "Metrics for Prometheus.", kind="text/plain"),
    Route("GET", "/openapi.json", openapi, "The OpenAPI document."),
    Route("GET", "/docs", documentation, "A page with the routes.", kind="text/html"),
)
