"""The errors and the frames of Ollama's dialect: a line of JSON each."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from octavo.transport.dialect import TEXT, Dialect, object_schema
from octavo.transport.errors import ApiError
from octavo.transport.exchange import encode


def line(value: Any) -> bytes:
    """Return a frame of a stream."""
    return encode(value) + b"\n"


def error_body(error: ApiError) -> bytes:
    """Return an error, as a response or as the last line of a stream; it names the field."""
    return encode({"error": error.named_message})


def instant(seconds: float) -> str:
    """Return a time as this dialect writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


OLLAMA = Dialect(
    error_body=error_body,
    error_name="OllamaError",
    error_schema=object_schema("error", error=TEXT),
    stream_kind="application/x-ndjson",
    stream_schema=lambda payload: payload,
    is_resumable=False,
    takes_any_kind=True,
    base_path="",
)
