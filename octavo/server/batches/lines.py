"""The lines of batch files, in the form of OpenAI and vLLM: a request each, or a result each."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from hashlib import blake2b
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

MAX_ID_CHARACTERS = 512
_encode = msgspec.json.Encoder().encode


class RequestLine(Struct, kw_only=True, forbid_unknown_fields=True):
    """One request of a batch."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=MAX_ID_CHARACTERS)]
    url: Annotated[str, Meta(min_length=1, max_length=256)]
    body: Raw
    method: str = "POST"


class _Streamed(Struct):
    """The part of a body that decides whether its answer is a stream."""

    stream: Any = None
    background: Any = None


@dataclass(frozen=True, slots=True)
class LineError(Exception):
    """A line that is no request of a batch: what is wrong with it, and in which field."""

    code: str
    message: str
    param: str | None = None


_decode = msgspec.json.Decoder(RequestLine).decode
_decode_streamed = msgspec.json.Decoder(_Streamed).decode


def read_line(data: bytes, urls: Collection[str], max_body_bytes: int) -> RequestLine:
    """Return the request of a line; raise LineError for one that cannot be answered.

    `urls` are the routes that its batch may ask for.
    """
    try:
        line = _decode(data)
    except (msgspec.ValidationError, RecursionError) as error:
        raise LineError("invalid_request", f"the line is no request: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LineError("invalid_json_line", f"the line is not valid JSON: {error}") from None
    if line.method != "POST":
        message = f"method is {line.method[:16]!r}; only 'POST' is possible"
        raise LineError("invalid_method", message, "method")
    if line.url not in urls:
        known = " or ".join(map(repr, sorted(urls)))
        raise LineError("invalid_url", f"url is {line.url!r}; this batch asks for {known}", "url")
    body = bytes(line.body)
    if len(body) > max_body_bytes:
        message = f"body has {len(body)} bytes; a request may have {max_body_bytes}"
        raise LineError("body_too_large", message, "body")
    try:
        streamed = _decode_streamed(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise LineError("invalid_request", "body must be a JSON object", "body") from None
    if streamed.stream:
        message = "body.stream: answers of a batch are whole; leave stream out"
        raise LineError("invalid_request", message, "body.stream")
    if streamed.background:
        message = "body.background: a batch waits for its answers; leave background out"
        raise LineError("invalid_request", message, "body.background")
    return line


def call_name(batch: str, number: int) -> str:
    """Return the id of a line's request, the same each time it is tried."""
    digest = blake2b(f"{batch}/{number}".encode(), digest_size=12).hexdigest()
    return f"batch_req_{digest}"


def answered(name: str, custom_id: str, status: int, body: bytes) -> bytes:
    """Return the result of a request that was answered, whether well or with an error."""
    response = {"status_code": status, "request_id": name, "body": Raw(body)}
    return _encode({"id": name, "custom_id": custom_id, "response": response, "error": None})


def unanswered(name: str, custom_id: str, code: str, message: str) -> bytes:
    """Return the result of a request that was never tried to its end."""
    error = {"code": code, "message": message}
    return _encode({"id": name, "custom_id": custom_id, "response": None, "error": error})
