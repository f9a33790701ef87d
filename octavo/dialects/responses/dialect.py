"""The errors of the Responses API."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo.dialects.common.dialect import OPENAI, event_schema
from octavo.transport.errors import ApiError

ID_PREFIX = "resp_"
_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}


def response_error(error: ApiError) -> dict[str, Any]:
    """Return an error as a response that has failed contains it."""
    return {"code": _CODES.get(error.status, "server_error"), "message": error.message}


def error_fields(error: ApiError) -> dict[str, Any]:
    """Return the fields of the event of an error that ends a connection, and not a response."""
    return {"code": error.code, "message": error.message, "param": error.param}


RESPONSES = replace(OPENAI, stream_schema=event_schema, id_prefixes=(ID_PREFIX,))
