"""The errors and the frames of Ollama's dialect: a line of JSON each."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from octavo.transport.dialect import Dialect
from octavo.transport.errors import ApiError
from octavo.transport.exchange import encode

_ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
}


def line(value: Any) -> bytes:
    """Return a frame of a stream."""
    return encode(value) + b"\n"


def error_body(error: ApiError) -> bytes:
    """Return an error, as a response or as the last line of a stream; it names the field."""
    message = error.message
    if error.param is not None and error.param not in message:
        message = f"{error.param}: {message}"
    return encode({"error": message})


def instant(seconds: float) -> str:
    """Return a time as this dialect writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


OLLAMA = Dialect(
    error_body=error_body,
    error_name="OllamaError",
    error_schema=_ERROR_SCHEMA,
    stream_kind="application/x-ndjson",
    stream_schema=lambda payload: payload,
    is_resumable=False,
    takes_any_kind=True,
    base_path="",
)
