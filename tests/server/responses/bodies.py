"""The matrix's bodies of the responses API's requests."""

from __future__ import annotations

from typing import Any

from tests.server.matrix.prompts import TEXT

BODIES: dict[str, dict[str, Any]] = {
    "ResponsesRequest": {"input": TEXT, "temperature": 0, "max_output_tokens": 12},
}
