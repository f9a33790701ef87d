"""The errors and the frames of llama.cpp's dialect; its streams end without a mark.

Its chats are OpenAI's, but for the error of a prompt that is too long.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo.api.requests import TOO_LONG
from octavo.dialects.common import dialect as openai
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


def _error_schema(code: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an error; that of its code is given."""
    form = object_schema(
        *("code", "message", "type"),
        code=code,
        message=TEXT,
        type=TEXT,
        param=TEXT_OR_NULL,
        n_prompt_tokens={"type": "integer"},
        n_ctx={"type": "integer"},
    )
    return object_schema("error", error=form)


def error_form(error: ApiError) -> dict[str, Any]:
    """Return an error as an object; its code is the status here."""
    form = {
        "code": error.status,
        "message": error.message,
        "type": _TYPES.get(error.status, _INVALID),
        "param": error.param,
    }
    return form | _about_length(error)


def _about_length(error: ApiError) -> dict[str, Any]:
    """Return the fields by which clients recognise that a prompt is too long, if that is so."""
    if error.code != TOO_LONG:
        return {}
    form = {"message": _EXCEEDS + error.message, "type": _TOO_LONG}
    if error.room is None:
        return form
    num_prompt, longest = error.room
    return form | {"n_prompt_tokens": num_prompt, "n_ctx": longest}


def error_body(error: ApiError) -> bytes:
    """Return the body of an error response."""
    return encode({"error": error_form(error)})


def _chat_error_body(error: ApiError) -> bytes:
    """Return the body of an error response of a chat."""
    return encode({"error": openai.error_form(error) | _about_length(error)})


LLAMA = replace(
    OPENAI,
    error_body=error_body,
    error_name="LlamaError",
    error_schema=_error_schema({"type": "integer"}),
    stream_schema=data_schema,
    is_resumable=False,
    takes_any_kind=True,
    id_prefixes=(),
    base_path="",
)
LLAMA_CHAT = replace(
    OPENAI,
    error_body=_chat_error_body,
    error_name="LlamaChatError",
    error_schema=_error_schema(TEXT_OR_NULL),
)
