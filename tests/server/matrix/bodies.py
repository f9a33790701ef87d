"""The bodies of OpenAI's requests, which several dialects share."""

from __future__ import annotations

from typing import Any

from tests.server.matrix.prompts import CHAT, SAMPLING, TEXT

BODIES: dict[str, dict[str, Any]] = {
    "CompletionRequest": {"prompt": TEXT, **SAMPLING},
    "ChatRequest": {"messages": CHAT, **SAMPLING},
    "LlamaChatRequest": {"messages": CHAT, **SAMPLING},
}
