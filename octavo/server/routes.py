"""The table of all routes, from which they are served, documented and tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from html import escape

from octavo.dialects.adapters.routes import ADAPTER_ROUTES
from octavo.dialects.anthropic.dialect import ANTHROPIC
from octavo.dialects.anthropic.routes import ANTHROPIC_ROUTES
from octavo.dialects.cohere.dialect import COHERE
from octavo.dialects.cohere.routes import COHERE_ROUTES
from octavo.dialects.common.dialect import OPENAI
from octavo.dialects.common.schema.chat import ChatChunk, ChatResponse
from octavo.dialects.decisions.dialect import DECISIONS
from octavo.dialects.decisions.routes import DECISION_ROUTES
from octavo.dialects.embeddings.dialect import EMBEDDINGS
from octavo.dialects.embeddings.routes import EMBEDDING_ROUTES
from octavo.dialects.llama.dialect import LLAMA, LLAMA_CHAT
from octavo.dialects.llama.routes import LLAMA_ROUTES
from octavo.dialects.mistral.routes import FIM_ROUTES
from octavo.dialects.ollama.dialect import OLLAMA
from octavo.dialects.ollama.routes import OLLAMA_ROUTES
from octavo.dialects.openai.routes import OPENAI_ROUTES
from octavo.dialects.openai.timed_chat import LlamaChatRequest, translate_for_llama
from octavo.dialects.responses.dialect import RESPONSES
from octavo.dialects.responses.routes import RESPONSES_ROUTES
from octavo.dialects.tgi.dialect import TGI
from octavo.dialects.tgi.routes import TGI_ROUTES
from octavo.dialects.vllm.routes import VLLM_ROUTES
from octavo.options.server import ServerSettings
from octavo.server.console.page import home
from octavo.server.invocations import invoke
from octavo.server.openapi import document
from octavo.serving import status_routes
from octavo.serving.batches.routes import BATCH_ROUTES
from octavo.serving.durable.routes import resume
from octavo.serving.exchange import Exchange
from octavo.serving.generate import generating
from octavo.serving.live.routes import LIVE_ROUTES
from octavo.transport.dialect import Dialect
from octavo.transport.errors import ApiError
from octavo.transport.exchange import encode
from octavo.transport.route import Route

# The page has no script, and may load nothing.
_PAGE_HEADERS = (
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),
    (b"x-content-type-options", b"nosniff"),
)


DIALECTS: Sequence[Dialect] = (
    OPENAI,
    ANTHROPIC,
    RESPONSES,
    EMBEDDINGS,
    OLLAMA,
    COHERE,
    LLAMA,
    LLAMA_CHAT,
    TGI,
    DECISIONS,
)
DEFAULT_DIALECT = DIALECTS[0]  # of errors outside a dialect's own routes
_ID_PREFIXES = [prefix for dialect in DIALECTS for prefix in dialect.id_prefixes]


async def openapi(exchange: Exchange) -> None:
    server = exchange.server
    if not server.openapi:
        whole = document(
            documented(server.config),
            DEFAULT_DIALECT,
            needs_key=bool(server.config.api_keys),
            public=server.access.public,
            root_path=server.config.root_path,
        )
        server.openapi = encode(whole)
    await exchange.respond(server.openapi)


async def documentation(exchange: Exchange) -> None:
    lines = "\n".join(
        f"{each.method:5}{each.path:31}{each.summary}"
        for each in documented(exchange.server.config)
    )
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Octavo</title>'
        "<style>:root{color-scheme:light dark}</style><h1>Octavo</h1><p>Send an API key as "
        "<code>Authorization: Bearer KEY</code>. All fields and their bounds are in "
        f"<code>/openapi.json</code>.<pre>{escape(lines)}</pre></html>"
    )
    kind = b"text/html; charset=utf-8"
    await exchange.respond(page.encode(), kind=kind, headers=_PAGE_HEADERS)


# The routes of a server of token ids alone: no answer has a text, and nothing is made of one.
_READ_OF_TOKENS = (
    *("/v1/requests/{id}/explain", "/v1/streams/{id}", "/v1/models", "/v1/models/{id}"),
    *("/", "/v1/live", "/version", "/health/live", "/health/ready", "/health", "/ping", "/load"),
    *("/metrics", "/openapi.json", "/docs"),
)
OF_TOKENS = frozenset(
    {
        *(("POST", "/inference/v1/generate"), ("POST", "/inference/v1/abort_requests")),
        *(("POST", "/ping"), *(("GET", path) for path in _READ_OF_TOKENS)),
    }
)


async def no_text(exchange: Exchange) -> None:
    """Refuse a request to a route that a server of token ids alone does not have."""
    raise ApiError(
        404,
        "this server was started with --tokens-only: it continues token ids, at "
        "/inference/v1/generate; make them with another server, at the render routes",
        code="tokens_only",
    )


def documented(config: ServerSettings) -> list[Route]:
    """Return the routes that a server has."""
    if not config.tokens_only:
        return [*ROUTES]
    return [each for each in ROUTES if (each.method, each.path) in OF_TOKENS]


def served(config: ServerSettings) -> list[Route]:
    """Return the routes that a server answers; those that it does not have say why."""
    has = documented(config)
    return [each if each in has else replace(each, handler=no_text) for each in ROUTES]


ROUTES: Sequence[Route] = (
    *OPENAI_ROUTES,
    *FIM_ROUTES,
    *ANTHROPIC_ROUTES,
    *COHERE_ROUTES,
    *RESPONSES_ROUTES,
    *BATCH_ROUTES,
    *OLLAMA_ROUTES,
    Route(
        *("GET", "/v1/requests/{id}/explain", partial(status_routes.explain, _ID_PREFIXES)),
        "Where a request spent its time.",
    ),
    Route(
        *("GET", "/v1/streams/{id}", partial(resume, _ID_PREFIXES)),
        "The rest of a stream, behind the position ?from=N.",
        kind="text/event-stream",
        other_kinds=("application/json",),  # of a request without a stream
        query=(("from", "The id of the last event that was received; without it, all comes."),),
    ),
    *LIVE_ROUTES,
    *ADAPTER_ROUTES,
    *EMBEDDING_ROUTES,
    *VLLM_ROUTES,
    Route(
        "POST", "/invocations", invoke, "Any of chat, text, embeddings and scores, for SageMaker."
    ),
    Route(
        *("POST", "/chat/completions", generating(LlamaChatRequest, translate_for_llama)),
        "A chat as at /v1/chat/completions, with what llama.cpp's clients expect.",
        *(LlamaChatRequest, ChatResponse, ChatChunk),
        dialect=LLAMA_CHAT,
    ),
    *LLAMA_ROUTES,
    *TGI_ROUTES,
    *DECISION_ROUTES,
    Route(
        *("GET", "/", home, "The server's name; for browsers the console."),
        kind="text/plain",
        other_kinds=("text/html",),
    ),
    Route("GET", "/version", status_routes.version, "The server's version."),
    Route("GET", "/health/live", status_routes.live, "Whether the event loop runs."),
    Route("GET", "/health/ready", status_routes.ready, "Whether requests are served."),
    Route("GET", "/health", status_routes.ready, "The same as /health/ready."),
    Route("GET", "/metrics", status_routes.metrics, "Metrics for Prometheus.", kind="text/plain"),
    Route("GET", "/openapi.json", openapi, "The OpenAPI document."),
    Route("GET", "/docs", documentation, "A page with the routes.", kind="text/html"),
)
