"""The matrix's bodies of Anthropic's requests."""

from __future__ import annotations

from typing import Any

from tests.server.matrix.prompts import CHAT, SAMPLING

BODIES: dict[str, dict[str, Any]] = {
    "MessagesRequest": {"model": "tiny", "messages": CHAT, **SAMPLING},
}
