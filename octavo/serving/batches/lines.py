"""The lines of batch files, in the form of OpenAI and vLLM: a request each, or a result each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from octavo.serving.schema.decode import read_field, unknown_field, why_malformed
from octavo.serving.schema.near_names import near_name
from octavo.serving.schema.reader import Unknown, fields_of, visit
from octavo.serving.schema.rules import rules_of
from octavo.transport.errors import ApiError

MAX_ID_CHARACTERS = 512
POST = "POST"
_MAX_UNKNOWN = 8  # fields of one line that are named
_MAX_NAME = 192  # characters of a field that are compared and shown
_IS_NOT_ASKED = frozenset({b"false", b"null"})
_encode = msgspec.json.Encoder().encode


class RequestLine(Struct, kw_only=True, forbid_unknown_fields=True):
    """One request of a batch."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=MAX_ID_CHARACTERS)]
    url: Annotated[str, Meta(min_length=1, max_length=256)]
    body: Raw
    method: str = POST


class _Parts(Struct):
    """The fields of a line, each left as JSON; others are skipped without being built."""

    custom_id: Raw | UnsetType = UNSET
    url: Raw | UnsetType = UNSET
    body: Raw | UnsetType = UNSET
    method: Raw | UnsetType = UNSET


class _Streamed(Struct):
    """The part of a body that decides whether its answer is a stream; it is left as JSON."""

    stream: Raw | UnsetType = UNSET
    background: Raw | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class LineError:
    """One error of a line that is no request of a batch, and its field."""

    code: str
    message: str
    param: str | None = None


class InvalidLineError(Exception):
    """The errors of one line."""

    def __init__(self, *errors: LineError) -> None:
        super().__init__(*errors)
        self.errors = errors


_decode = msgspec.json.Decoder(RequestLine).decode
_decode_parts = msgspec.json.Decoder(_Parts).decode
_decode_streamed = msgspec.json.Decoder(_Streamed).decode


def read_line(data: bytes, urls: Collection[str], max_body_bytes: int) -> RequestLine:
    """Return the request of a line; raise InvalidLineError for one that cannot be answered.

    `urls` are the routes that its batch may ask for.
    """
    errors: list[LineError] = []
    try:
        line = _decode(data)
        values: Mapping[str, Any] = msgspec.structs.asdict(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        values, errors = _read_fields(data)
    errors += _errors_in(values, urls, max_body_bytes)
    if errors:
        raise InvalidLineError(*errors)
    return RequestLine(**values)


def _read_fields(data: bytes) -> tuple[Mapping[str, Any], list[LineError]]:
    """Return the fields of a line that are right by themselves, and what is wrong with others."""
    try:
        found, unknown = _decode_parts(data), _unknown_names(data)
    except msgspec.ValidationError:
        return {}, [LineError("invalid_request", "the line must be a JSON object")]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"the line is not valid JSON: {why_malformed(error)}"
        return {}, [LineError("invalid_json_line", message)]
    values: dict[str, Any] = {}
    errors: list[LineError] = []
    for name, field in fields_of(RequestLine).items():
        part = getattr(found, name)
        try:
            if part is not UNSET:
                values[name] = read_field(field, part, rules_of(RequestLine), [])
            elif field.is_required:
                errors.append(LineError("invalid_request", f"{name} is missing", name))
        except ApiError as error:
            errors.append(LineError("invalid_request", error.message, error.param))
    for name in unknown:
        wrong = unknown_field(Unknown(name, name, RequestLine.__struct_fields__), RequestLine)
        errors.append(LineError("invalid_request", wrong.message, wrong.param))
    return values, errors


def _unknown_names(data: bytes) -> list[str]:
    """Return the first unknown names of a line, which may have a million: no more are built."""
    names: list[str] = []

    def is_last(name: str) -> bool:
        if name not in RequestLine.__struct_fields__:
            names.append(name[:_MAX_NAME])
        return len(names) == _MAX_UNKNOWN

    visit(data, is_last)
    return names


def _errors_in(
    values: Mapping[str, Any], urls: Collection[str], max_body_bytes: int
) -> Iterator[LineError]:
    """Yield what is wrong with the values of fields that there are."""
    method, url = values.get("method", POST), values.get("url")
    if method != POST:
        message = f"method is {method[:16]!r}; only {POST!r} is possible"
        yield LineError("invalid_method", message, "method")
    if url is not None and url not in urls:
        known = " or ".join(map(repr, sorted(urls)))
        hint = near_name(url, urls) or f"; this batch asks for {known}"
        yield LineError("invalid_url", f"url is {url!r}{hint}", "url")
    if "body" in values:
        yield from _errors_in_body(bytes(values["body"]), max_body_bytes)


def _errors_in_body(body: bytes, most: int) -> Iterator[LineError]:
    if len(body) > most:
        message = f"body has {len(body)} bytes; a request may have {most}"
        yield LineError("body_too_large", message, "body")
        return
    try:
        streamed = _decode_streamed(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        yield LineError("invalid_request", "body must be a JSON object", "body")
        return
    if _is_asked(streamed.stream):
        message = "body.stream: answers of a batch are whole; leave stream out"
        yield LineError("invalid_request", message, "body.stream")
    if _is_asked(streamed.background):
        message = "body.background: a batch waits for its answers; leave background out"
        yield LineError("invalid_request", message, "body.background")


def _is_asked(value: Raw | UnsetType) -> bool:
    return value is not UNSET and bytes(value) not in _IS_NOT_ASKED


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
