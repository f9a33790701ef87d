"""The part of the table of routes that has Mistral's own."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.dialects.common.schema.chat import ChatChunk, ChatResponse
from octavo.dialects.mistral import fim
from octavo.dialects.mistral.schema import FimRequest
from octavo.serving.generate import generating
from octavo.transport.route import Route

FIM_ROUTES: Sequence[Route] = (
    Route(
        *("POST", "/v1/fim/completions"),
        generating(FimRequest, fim.translate),
        "Write what stands between two texts, in Mistral's dialect.",
        *(FimRequest, ChatResponse, ChatChunk),
    ),
)
