"""OpenAI's dialect: its error body and its frames, which are server-sent events."""

from __future__ import annotations

from typing import Any

from octavo.transport.dialect import TEXT, TEXT_OR_NULL, Dialect, json_text, object_schema
from octavo.transport.errors import ApiError
from octavo.transport.exchange import encode

CHAT_ID, COMPLETION_ID = "chatcmpl-", "cmpl-"  # of answers, before the id of the request
SCORING_ID = "generative-scoring-"
DONE = b"data: [DONE]\n\n"
_INVALID = "invalid_request_error"
_TYPES = {
    400: _INVALID,
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: _INVALID,
    408: _INVALID,
    409: _INVALID,
    413: _INVALID,
    415: _INVALID,
    429: "rate_limit_error",
    431: _INVALID,
    503: "service_unavailable_error",
}
_ERROR_SCHEMA = object_schema(
    "error",
    error=object_schema(
        *("message", "type", "param", "code"),
        message=TEXT,
        type=TEXT,
        param=TEXT_OR_NULL,
        code=TEXT_OR_NULL,
    ),
)


def frame(payload: bytes) -> bytes:
    """Return the event with this payload."""
    return b"data: %b\n\n" % payload


def error_form(error: ApiError) -> dict[str, Any]:
    """Return an error as an object, as OpenAI's clients expect it."""
    return {
        "message": error.message,
        "type": _TYPES.get(error.status, "server_error"),
        "param": error.param,
        "code": error.code,
    }


def error_body(error: ApiError) -> bytes:
    """Return the body of an error response."""
    return encode({"error": error_form(error)})


def _stream_schema(payload: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an event: JSON in a string, or the end marker."""
    return object_schema("data", data={"anyOf": [{"const": "[DONE]"}, json_text(payload)]})


OPENAI = Dialect(
    error_body=error_body,
    error_name="Error",
    error_schema=_ERROR_SCHEMA,
    stream_kind="text/event-stream; charset=utf-8",
    stream_schema=_stream_schema,
    ping=b": ping\n\n",
    id_prefixes=(CHAT_ID, COMPLETION_ID, SCORING_ID),
)


def event(name: str, payload: dict[str, Any]) -> bytes:
    """Return the event with this name, which is the type of its payload too."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode({"type": name, **payload}))


def event_schema(payload: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an event: its name, and JSON in a string."""
    return object_schema("event", "data", event=TEXT, data=json_text(payload))


def data_schema(payload: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an event without a name: JSON in a string."""
    return object_schema("data", data=json_text(payload))
