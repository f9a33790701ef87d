"""The errors and the events of Anthropic's dialect."""

from __future__ import annotations

from typing import Any

from octavo.dialects.common.dialect import event, event_schema
from octavo.transport.dialect import TEXT, Dialect, object_schema
from octavo.transport.errors import ApiError
from octavo.transport.exchange import encode

ID_PREFIX = "msg_"  # of answers
_INVALID = "invalid_request_error"
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_NO_THREADS = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
_ERROR_SCHEMA = object_schema(
    *("type", "error"),
    type={"const": "error"},
    error=object_schema(*("type", "message"), type=TEXT, message=TEXT, details={"type": "object"}),
)


def error_body(error: ApiError) -> bytes:
    """Return the body of an error response, as Anthropic's clients expect it."""
    return encode({"type": "error", "error": _error(error)})


def error_event(error: ApiError) -> bytes:
    """Return the event of an error that ends a stream."""
    return event("error", {"error": _error(error)})


def _error(error: ApiError) -> dict[str, Any]:
    """Return the object in both; Anthropic's messages begin with the field at fault.

    Its clients hold messages themselves where the details say that the server holds none.
    """
    kind = _TYPES.get(error.status, _INVALID if error.status < 500 else "api_error")
    made = {"type": kind, "message": error.named_message}
    return made | ({"details": _NO_THREADS} if error.param == "thread" else {})


ANTHROPIC = Dialect(
    error_body=error_body,
    error_name="AnthropicError",
    error_schema=_ERROR_SCHEMA,
    stream_kind="text/event-stream; charset=utf-8",
    stream_schema=event_schema,
    ping=event("ping", {}),
    id_prefixes=(ID_PREFIX,),
    base_path="",
)
