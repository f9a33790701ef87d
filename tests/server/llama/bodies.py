"""The matrix's bodies of llama-server's requests."""

from __future__ import annotations

from typing import Any

from tests.server.matrix.prompts import TEXT

BODIES: dict[str, dict[str, Any]] = {
    "LlamaCompletionRequest": {"prompt": TEXT, "temperature": 0, "n_predict": 12},
    "InfillRequest": {
        "input_prefix": TEXT,
        "input_suffix": "fox",
        "temperature": 0,
        "n_predict": 12,
    },
}
