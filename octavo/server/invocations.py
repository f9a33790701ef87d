"""/invocations: the one route that SageMaker calls; the body says which request it is."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from octavo.dialects.common.schema.chat import ChatRequest
from octavo.dialects.common.schema.completion import CompletionRequest
from octavo.dialects.embeddings import late_chunking, scores, tei, vectors
from octavo.dialects.embeddings.schema import (
    PAIRED,
    AnyRerankRequest,
    ClassifyRequest,
    EmbeddingRequest,
    ScoreRequest,
)
from octavo.dialects.openai import chat, completions
from octavo.server.sessions import change_session, check_session
from octavo.serving.exchange import Exchange
from octavo.serving.generate import generating
from octavo.serving.schema.decode import is_large
from octavo.transport.errors import invalid
from octavo.transport.route import Handler

_HANDLERS: dict[str, Handler] = {  # by the field that only this request has
    "messages": generating(ChatRequest, chat.translate),
    "prompt": generating(CompletionRequest, completions.translate),
    "input": generating(EmbeddingRequest, late_chunking.embeddings),
    "query": generating(AnyRerankRequest, tei.rerank),
    **dict.fromkeys((first for first, _ in PAIRED), generating(ScoreRequest, scores.score)),
}
_classify = generating(ClassifyRequest, vectors.classify)


# The fields that distinguish the requests; the others are skipped.
_SESSION = "requestType"
_NAMES = (_SESSION, *_HANDLERS)
_Kinds = msgspec.defstruct("_Kinds", [(name, Raw, Raw(b"null")) for name in _NAMES])
_decode = msgspec.json.Decoder(_Kinds).decode


async def invoke(exchange: Exchange) -> None:
    """Handle POST /invocations like the route whose request the body is."""
    body = await exchange.body()
    name = _kind(body)
    if name == _SESSION:
        await change_session(exchange, body)
        return
    check_session(exchange)
    if name is None:
        raise invalid(
            "the body has neither messages, as /v1/chat/completions takes them, nor a prompt, as "
            "/v1/completions does, nor an input, as /v1/embeddings and /classify do, nor a query "
            "with documents, as /rerank does, nor a pair of texts, as /score does; give one of them"
        )
    exchange.unread(body)
    del body
    tasks = exchange.server.llm.facts.pooling.tasks
    if name == "messages" and "generate" not in tasks:
        name = "input"  # the conversation is an input of what the model makes
    is_classifier = "classify" in tasks and "embed" not in tasks
    await (_classify if name == "input" and is_classifier else _HANDLERS[name])(exchange)


def _kind(body: bytes) -> str | None:
    """Return the field that distinguishes the request; None if there is none."""
    if is_large(body):  # parsing it would hold the event loop
        return next((name for name in _HANDLERS if b'"%b"' % name.encode() in body), None)
    try:
        found = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "messages"  # whose decoder says what is wrong with the body
    return next((name for name in _NAMES if bytes(getattr(found, name)) != b"null"), None)
