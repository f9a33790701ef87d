"""The errors of SGLang's routes that load and unload adapters."""

from __future__ import annotations

from dataclasses import replace

from octavo.dialects.adapters.schema import AdapterChange
from octavo.dialects.common.dialect import OPENAI
from octavo.transport.dialect import TEXT, object_schema
from octavo.transport.errors import ApiError
from octavo.transport.exchange import encode


def error_body(error: ApiError) -> bytes:
    """Return the body of an error response, as SGLang's clients expect it."""
    return encode(AdapterChange(success=False, error_message=error.named_message))


SGLANG = replace(
    OPENAI,
    error_body=error_body,
    error_name="AdapterChangeError",
    error_schema=object_schema(
        *("success", "error_message"), success={"const": False}, error_message=TEXT
    ),
    base_path="",
)
