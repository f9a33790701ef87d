"""The matrix's bodies of Mistral's requests."""

from __future__ import annotations

from typing import Any

from tests.server.matrix.prompts import SAMPLING, TEXT

BODIES: dict[str, dict[str, Any]] = {
    "FimRequest": {"prompt": TEXT, "suffix": "fox", **SAMPLING},
}
