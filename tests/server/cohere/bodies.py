"""The matrix's bodies of Cohere's requests."""

from __future__ import annotations

from typing import Any

from tests.server.matrix.prompts import CHAT, SAMPLING, TEXT

BODIES: dict[str, dict[str, Any]] = {
    "CohereRerankRequest": {"query": TEXT, "documents": ["x", "y"]},
    "CohereChatRequest": {"model": "tiny", "messages": CHAT, **SAMPLING},
    "CohereEmbedRequest": {"model": "tiny", "texts": [TEXT, "x"]},
}
# Where answers have what was generated or computed; lists on the way are followed.
PLACES = (
    ("message", "content", "text"),
    ("delta", "message", "content", "text"),
    ("embeddings", "float"),
)
