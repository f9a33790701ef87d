"""The errors and the events of Cohere's dialect."""

from __future__ import annotations

from typing import Any

from octavo.dialects.common.dialect import DONE, event, event_schema
from octavo.transport.dialect import Dialect
from octavo.transport.errors import ApiError
from octavo.transport.exchange import encode

_ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["message"],
    "properties": {"message": {"type": "string"}},
}


def message_of(error: ApiError) -> str:
    """Return the text of an error, which begins with the field at fault if it does not name it."""
    message = error.message
    if error.param is not None and error.param not in message:
        message = f"{error.param}: {message}"
    return message


def error_body(error: ApiError) -> bytes:
    """Return the body of an error response, as Cohere's clients expect it."""
    return encode({"message": message_of(error)})


def error_events(error: ApiError) -> bytes:
    """Return the events of an error that ends a stream."""
    delta = {"finish_reason": "ERROR", "error": message_of(error)}
    return event("message-end", {"delta": delta}) + DONE


COHERE = Dialect(
    error_body=error_body,
    error_name="CohereError",
    error_schema=_ERROR_SCHEMA,
    stream_kind="text/event-stream; charset=utf-8",
    stream_schema=event_schema,
    ping=b": ping\n\n",
    id_prefixes=(),
    base_path="",
)
