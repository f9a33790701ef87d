"""The errors and the events of the Responses API."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo.dialects.common.dialect import OPENAI
from octavo.transport.errors import ApiError
from octavo.transport.exchange import encode

ID_PREFIX = "resp_"
_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}


def event(name: str, payload: dict[str, Any]) -> bytes:
    """Return the event with this name, which is the type of its payload too."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode({"type": name, **payload}))


def response_error(error: ApiError) -> dict[str, Any]:
    """Return an error as a response that has failed contains it."""
    return {"code": _CODES.get(error.status, "server_error"), "message": error.message}


def error_fields(error: ApiError) -> dict[str, Any]:
    """Return the fields of the event of an error that ends a connection, and not a response."""
    return {"code": error.code, "message": error.message, "param": error.param}


def _stream_schema(payload: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an event: its name, and JSON in a string."""
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": payload}
    return {
        "type": "object",
        "required": ["event", "data"],
        "properties": {"event": {"type": "string"}, "data": data},
    }


RESPONSES = replace(OPENAI, stream_schema=_stream_schema, id_prefixes=(ID_PREFIX,))
