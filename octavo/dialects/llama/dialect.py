"""The errors and the frames of llama.cpp's dialect; its streams end without a mark."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo.api.requests import TOO_LONG
from octavo.dialects.common.dialect import OPENAI, data_schema
from octavo.transport.dialect import TEXT, TEXT_OR_NULL, object_schema
from octavo.transport.errors import ApiError
from octavo.transport.exchange import encode

_INVALID = "invalid_request_error"
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "unavailable_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
    504: "unavailable_error",
}
_TOO_LONG = "exceed_context_size_error"
_EXCEEDS = "the request exceeds the available context size: "  # clients look for these words
_ERROR_SCHEMA = object_schema(
    "error",
    error=object_schema(
        *("code", "message", "type"),
        code={"type": "integer"},
        message=TEXT,
        type=TEXT,
        param=TEXT_OR_NULL,
        n_prompt_tokens={"type": "integer"},
        n_ctx={"type": "integer"},
    ),
)


def error_form(error: ApiError) -> dict[str, Any]:
    """Return an error as an object; its code is the status here."""
    is_too_long = error.code == TOO_LONG
    kind = _TOO_LONG if is_too_long else _TYPES.get(error.status, _INVALID)
    form = {
        "code": error.status,
        "message": (_EXCEEDS if is_too_long else "") + error.message,
        "type": kind,
        "param": error.param,
    }
    if error.room is not None:
        form["n_prompt_tokens"], form["n_ctx"] = error.room
    return form


def error_body(error: ApiError) -> bytes:
    """Return the body of an error response."""
    return encode({"error": error_form(error)})


LLAMA = replace(
    OPENAI,
    error_body=error_body,
    error_name="LlamaError",
    error_schema=_ERROR_SCHEMA,
    stream_schema=data_schema,
    is_resumable=False,
    takes_any_kind=True,
    id_prefixes=(),
    base_path="",
)
