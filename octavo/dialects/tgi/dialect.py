"""The errors and the frames of TGI's dialect; its streams end without a mark."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo.dialects.common.dialect import OPENAI
from octavo.transport.errors import ApiError
from octavo.transport.exchange import encode

_TYPES = dict.fromkeys((401, 403), "authentication") | dict.fromkeys((429, 503), "overloaded")
_ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error", "error_type"],
    "properties": {
        "error": {"type": "string"},
        "error_type": {"enum": ["authentication", "validation", "generation", "overloaded"]},
        "param": {"type": ["string", "null"]},
        "code": {"type": ["string", "null"]},
    },
}


def error_body(error: ApiError) -> bytes:
    """Return an error, as a response or as the last event of a stream."""
    other = "validation" if error.status < 500 else "generation"
    return encode(
        {
            "error": error.message,
            "error_type": _TYPES.get(error.status, other),
            "param": error.param,
            "code": error.code,
        }
    )


def _stream_schema(payload: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an event: JSON in a string."""
    text = {"type": "string", "contentMediaType": "application/json", "contentSchema": payload}
    return {"type": "object", "required": ["data"], "properties": {"data": text}}


TGI = replace(
    OPENAI,
    error_body=error_body,
    error_name="TgiError",
    error_schema=_ERROR_SCHEMA,
    stream_schema=_stream_schema,
    is_resumable=False,
    id_prefixes=(),
    base_path="",
)
