"""The errors and the events of Cohere's dialect."""

from __future__ import annotations

from octavo.dialects.common.dialect import DONE, event, event_schema
from octavo.transport.dialect import TEXT, Dialect, object_schema
from octavo.transport.errors import ApiError
from octavo.transport.exchange import encode


def error_body(error: ApiError) -> bytes:
    """Return the body of an error response, as Cohere's clients expect it."""
    return encode({"message": error.named_message})


def error_events(error: ApiError) -> bytes:
    """Return the events of an error that ends a stream."""
    delta = {"finish_reason": "ERROR", "error": error.named_message}
    return event("message-end", {"delta": delta}) + DONE


COHERE = Dialect(
    error_body=error_body,
    error_name="CohereError",
    error_schema=object_schema("message", message=TEXT),
    stream_kind="text/event-stream; charset=utf-8",
    stream_schema=event_schema,
    ping=b": ping\n\n",
    id_prefixes=(),
    base_path="",
)
