"""/invocations: the one route that SageMaker calls; the body says which request it is.

Some requests begin and end stateful sessions.
"""

from __future__ import annotations

import time
from typing import Literal

import msgspec
from msgspec import Raw, Struct, field

from octavo.dialects.embeddings.routes import EMBEDDING_ROUTES
from octavo.dialects.embeddings.schema import PAIRED
from octavo.dialects.openai.routes import OPENAI_ROUTES
from octavo.serving.bounds.sessions import HEADER, SECONDS
from octavo.serving.exchange import Exchange
from octavo.serving.schema.decode import decode, is_large
from octavo.transport.errors import ApiError, invalid

_NEW, _CLOSED = b"x-amzn-sagemaker-new-session-id", b"x-amzn-sagemaker-closed-session-id"
_CREATES = "NEW_SESSION"
_AT = {route.path: route.handler for route in (*OPENAI_ROUTES, *EMBEDDING_ROUTES)}
_HANDLERS = {  # by the field that only this request has
    "messages": _AT["/v1/chat/completions"],
    "prompt": _AT["/v1/completions"],
    "input": _AT["/v1/embeddings"],
    "query": _AT["/rerank"],
    **dict.fromkeys((first for first, _ in PAIRED), _AT["/score"]),
}


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
    await (_AT["/classify"] if name == "input" and is_classifier else _HANDLERS[name])(exchange)


def _kind(body: bytes) -> str | None:
    """Return the field that distinguishes the request; None if there is none."""
    if is_large(body):  # parsing it would hold the event loop
        return next((name for name in _HANDLERS if b'"%b"' % name.encode() in body), None)
    try:
        found = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "messages"  # whose decoder says what is wrong with the body
    return next((name for name in _NAMES if bytes(getattr(found, name)) != b"null"), None)


class SessionRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """A request to begin or to end a session."""

    kind: Literal["NEW_SESSION", "CLOSE"] = field(name="requestType")


async def change_session(exchange: Exchange, body: bytes) -> None:
    """Handle a request to begin or to end a session."""
    request = exchange.accept(SessionRequest, *decode(body, SessionRequest))
    sessions, name = exchange.server.sessions, exchange.headers.get(HEADER, "")
    if request.kind == _CREATES:
        made = sessions.create(exchange.owner)
        end = time.gmtime(exchange.server.wall_time() + SECONDS)
        expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", end)
        exchange.extra_headers.append((_NEW, f"{made}; Expires={expires}".encode()))
    elif not name:
        raise ApiError(
            424, f"invalid session_id: name the session in the header {HEADER}", param=HEADER
        )
    else:
        sessions.close(exchange.owner, name)
        exchange.extra_headers.append((_CLOSED, name.encode()))
    await exchange.respond_json({})


def check_session(exchange: Exchange) -> None:
    """Raise ApiError if the request names a session that is not open."""
    name = exchange.headers.get(HEADER)
    if name is not None and name != _CREATES:
        exchange.server.sessions.check(exchange.owner, name)
