"""The matrix's bodies of vLLM's requests."""

from __future__ import annotations

from typing import Any

from tests.server.matrix.prompts import CHAT, SAMPLING

NAMED = {"logprob_token_ids": [8, 9]}
REPEATED = {"max_pattern_size": 3, "min_count": 2}
BODIES: dict[str, dict[str, Any]] = {
    "BatchChatRequest": {"messages": [CHAT, CHAT], **SAMPLING, "repetition_detection": REPEATED},
    "TokensRequest": {
        "token_ids": [5, 6, 7],
        "sampling_params": {**SAMPLING, **NAMED},
        "parse_context": {"tool_choice": "none", "include_reasoning": True},
    },
}
