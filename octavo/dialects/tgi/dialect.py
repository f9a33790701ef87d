"""The errors and the frames of TGI's dialect; its streams end without a mark."""

from __future__ import annotations

from dataclasses import replace

from octavo.dialects.common.dialect import OPENAI, data_schema
from octavo.transport.dialect import TEXT, TEXT_OR_NULL, object_schema
from octavo.transport.errors import ApiError
from octavo.transport.exchange import encode

_TYPES = dict.fromkeys((401, 403), "authentication") | dict.fromkeys((429, 503), "overloaded")
_ERROR_SCHEMA = object_schema(
    *("error", "error_type"),
    error=TEXT,
    error_type={"enum": ["authentication", "validation", "generation", "overloaded"]},
    param=TEXT_OR_NULL,
    code=TEXT_OR_NULL,
)


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


TGI = replace(
    OPENAI,
    error_body=error_body,
    error_name="TgiError",
    error_schema=_ERROR_SCHEMA,
    stream_schema=data_schema,
    is_resumable=False,
    id_prefixes=(),
    base_path="",
)
