"""What the matrix asks, in the words of whichever dialect."""

from __future__ import annotations

from typing import Any

SAMPLING: dict[str, Any] = {"temperature": 0, "max_tokens": 12}
TEXT = "The quick brown"
CHAT = [{"role": "user", "content": TEXT}]
