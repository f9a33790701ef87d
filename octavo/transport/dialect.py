"""The part of a dialect that concerns HTTP: how errors and streams look on the wire."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from octavo.transport.errors import ApiError

STREAM_HEADERS = (
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies must forward frames as they come
)

# Schemas of fields, in the OpenAPI document.
TEXT: dict[str, Any] = {"type": "string"}
TEXT_OR_NULL: dict[str, Any] = {"type": ["string", "null"]}


def object_schema(*required: str, **fields: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object."""
    return {"type": "object", "required": [*required], "properties": fields}


def json_text(payload: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a string with JSON in it."""
    return {**TEXT, "contentMediaType": "application/json", "contentSchema": payload}


@dataclass(frozen=True, slots=True)
class Dialect:
    """The errors and the frames of one API."""

    error_body: Callable[[ApiError], bytes]  # of an error that is a whole response
    error_name: str  # of that body in the OpenAPI document
    error_schema: dict[str, Any]
    stream_kind: str  # the content type of streams
    stream_schema: Callable[[dict[str, Any]], dict[str, Any]]  # of a frame, from its payload's
    ping: bytes = b""  # a frame without meaning for long silences; empty: there is none
    is_resumable: bool = True  # the events of a stream can have ids
    takes_any_kind: bool = False  # of body, since its users send JSON as `curl -d` does: as a form
    id_prefixes: tuple[str, ...] = ()  # which answers put before the id of a request
    # Returns the struct of a body that is not JSON; the arguments are the exchange, the body and
    # the struct's type.
    decode: Callable[[Any, bytes, type[Any]], Any] | None = None
    base_path: str = "/v1"  # at the end of the base URL that its clients take
    form: str = "events"  # of streams: one is continued in the same form alone
    # Returns a frame of a stream with the position behind it, on a server with a journal.
    with_id: Callable[[bytes, bytes], bytes] = lambda frame, number: b"id: %b\n%b" % (number, frame)
