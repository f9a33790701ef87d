"""The table of all routes, from which they are served, documented and tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from html import escape

from octavo.dialects.anthropic import messages
from octavo.dialects.anthropic.dialect import ANTHROPIC
from octavo.dialects.anthropic.schema import (
    Answer,
    CountRequest,
    CountResponse,
    MessagesRequest,
    StreamEvent,
)
from octavo.dialects.cohere.dialect import COHERE
from octavo.dialects.cohere.routes import COHERE_ROUTES
from octavo.dialects.decisions.dialect import DECISIONS
from octavo.dialects.decisions.routes import DECISION_ROUTES
from octavo.dialects.embeddings import late_chunking, scores, tei, vectors
from octavo.dialects.embeddings.dialect import EMBEDDINGS
from octavo.dialects.embeddings.schema import (
    AnyRerankRequest,
    AnyRerankResponse,
    ClassifyRequest,
    ClassifyResponse,
    CohereRerankRequest,
    EmbeddingRequest,
    EmbeddingResponse,
    PoolingRequest,
    PoolingResponse,
    RerankRequest,
    RerankResponse,
    ScoreRequest,
    ScoreResponse,
    TeiEmbedRequest,
    TeiEmbedResponse,
)
from octavo.dialects.llama.dialect import LLAMA
from octavo.dialects.llama.routes import LLAMA_ROUTES
from octavo.dialects.mistral import fim
from octavo.dialects.mistral.schema import FimRequest
from octavo.dialects.ollama.dialect import OLLAMA
from octavo.dialects.ollama.routes import OLLAMA_ROUTES
from octavo.dialects.openai import chat, completions
from octavo.dialects.openai.dialect import OPENAI
from octavo.dialects.openai.models import model, models
from octavo.dialects.openai.schema.chat import ChatChunk, ChatRequest, ChatResponse
from octavo.dialects.openai.schema.completion import (
    CompletionChunk,
    CompletionRequest,
    CompletionResponse,
)
from octavo.dialects.openai.schema.tokens import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from octavo.dialects.openai.tokens import detokenize, tokenize
from octavo.dialects.responses.dialect import RESPONSES
from octavo.dialects.responses.routes import RESPONSES_ROUTES
from octavo.dialects.tgi.dialect import TGI
from octavo.dialects.tgi.routes import TGI_ROUTES
from octavo.dialects.vllm.routes import VLLM_ROUTES
from octavo.server.openapi import document
from octavo.serving import status_routes
from octavo.serving.batches.routes import BATCH_ROUTES
from octavo.serving.durable.routes import resume
from octavo.serving.exchange import Exchange
from octavo.serving.generate import generating
from octavo.serving.settings import ServerSettings
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
    *("/", "/version", "/health/live", "/health/ready", "/health", "/ping", "/load"),
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
    Route(
        *("POST", "/v1/completions"),
        generating(CompletionRequest, completions.translate),
        "Continue texts or token ids.",
        *(CompletionRequest, CompletionResponse, CompletionChunk),
    ),
    Route(
        *("POST", "/v1/fim/completions"),
        generating(FimRequest, fim.translate),
        "Write what stands between two texts, in Mistral's dialect.",
        *(FimRequest, ChatResponse, ChatChunk),
    ),
    Route(
        *("POST", "/v1/chat/completions"),
        generating(ChatRequest, chat.translate),
        "Answer a conversation.",
        *(ChatRequest, ChatResponse, ChatChunk),
    ),
    Route(
        *("POST", "/v1/messages"),
        generating(MessagesRequest, messages.translate),
        "Answer a conversation, in Anthropic's dialect.",
        *(MessagesRequest, Answer, StreamEvent),
        dialect=ANTHROPIC,
    ),
    Route(
        *("POST", "/v1/messages/count_tokens", messages.count_tokens),
        "The number of tokens of a conversation, in Anthropic's dialect.",
        *(CountRequest, CountResponse),
        dialect=ANTHROPIC,
    ),
    *COHERE_ROUTES,
    *RESPONSES_ROUTES,
    Route("GET", "/v1/models", models, "The served models."),
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
    Route("GET", "/v1/models/{id}", model, "One model."),
    Route(
        *("POST", "/v1/embeddings"),
        generating(EmbeddingRequest, late_chunking.embeddings),
        "Vectors of texts.",
        *(EmbeddingRequest, EmbeddingResponse),
        other_kinds=("application/octet-stream",),
        dialect=EMBEDDINGS,
    ),
    Route(
        *("POST", "/pooling"),
        generating(PoolingRequest, vectors.pooling),
        "Vectors of texts, or of each of their tokens.",
        *(PoolingRequest, PoolingResponse),
        other_kinds=("application/octet-stream",),
        dialect=EMBEDDINGS,
    ),
    Route(
        *("POST", "/classify"),
        generating(ClassifyRequest, vectors.classify),
        "The classes of texts.",
        *(ClassifyRequest, ClassifyResponse),
        dialect=EMBEDDINGS,
    ),
    *(
        Route(
            *("POST", path),
            generating(ScoreRequest, scores.score),
            "How well two texts fit each other.",
            *(ScoreRequest, ScoreResponse),
            dialect=EMBEDDINGS,
        )
        for path in ("/v1/score", "/score")
    ),
    *(
        Route(
            *("POST", path),
            generating(kind, scores.rerank),
            "Documents in the order of their relevance to a query.",
            *(kind, RerankResponse),
            dialect=EMBEDDINGS,
        )
        for path, kind in (
            ("/v1/rerank", RerankRequest),
            ("/v2/rerank", CohereRerankRequest),
            ("/cohere/v2/rerank", CohereRerankRequest),
        )
    ),
    Route(
        *("POST", "/rerank"),
        generating(AnyRerankRequest, tei.rerank),
        "Documents in the order of their relevance to a query, in TEI's shape too.",
        *(AnyRerankRequest, AnyRerankResponse),
        dialect=EMBEDDINGS,
    ),
    Route(
        *("POST", "/embed"),
        generating(TeiEmbedRequest, tei.embed),
        "Vectors of texts, in TEI's shape.",
        *(TeiEmbedRequest, TeiEmbedResponse),
        dialect=EMBEDDINGS,
    ),
    Route(
        *("POST", "/tokenize", tokenize, "The token ids of a text or a conversation."),
        *(TokenizeRequest, TokenizeResponse),
    ),
    Route(
        *("POST", "/detokenize", detokenize, "The text of token ids."),
        *(DetokenizeRequest, DetokenizeResponse),
    ),
    *VLLM_ROUTES,
    *LLAMA_ROUTES,
    *TGI_ROUTES,
    *DECISION_ROUTES,
    Route("GET", "/", status_routes.root, "The server's name.", kind="text/plain"),
    Route("GET", "/version", status_routes.version, "The server's version."),
    Route("GET", "/health/live", status_routes.live, "Whether the event loop runs."),
    Route("GET", "/health/ready", status_routes.ready, "Whether requests are served."),
    Route("GET", "/health", status_routes.ready, "The same as /health/ready."),
    Route("GET", "/metrics", status_routes.metrics, "Metrics for Prometheus.", kind="text/plain"),
    Route("GET", "/openapi.json", openapi, "The OpenAPI document."),
    Route("GET", "/docs", documentation, "A page with the routes.", kind="text/html"),
)
