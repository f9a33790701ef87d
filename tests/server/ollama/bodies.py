"""The matrix's bodies of Ollama's requests."""

from __future__ import annotations

from typing import Any

from tests.server.matrix.prompts import CHAT, TEXT

OLLAMA = {"model": "tiny", "options": {"temperature": 0, "num_predict": 12}}
BODIES: dict[str, dict[str, Any]] = {
    "OllamaChatRequest": {"messages": CHAT, **OLLAMA},
    "OllamaGenerateRequest": {"prompt": TEXT, **OLLAMA},
    "OllamaEmbedRequest": {"model": "tiny", "input": [TEXT, "x"]},
    "OllamaEmbeddingRequest": {"model": "tiny", "prompt": TEXT},
}
