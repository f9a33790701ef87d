"""The matrix's bodies of TGI's requests."""

from __future__ import annotations

from typing import Any

from tests.server.matrix.prompts import TEXT

TGI = {"inputs": TEXT, "parameters": {"max_new_tokens": 12}}
BODIES: dict[str, dict[str, Any]] = {
    "TgiRequest": TGI,
    "TgiGenerateRequest": TGI,
    "TgiStreamRequest": TGI,
}
# Where answers have what was generated or computed; lists on the way are followed.
PLACES = (("generated_text",),)
