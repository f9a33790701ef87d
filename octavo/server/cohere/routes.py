"""The part of the table of routes that has Cohere's own."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.server.cohere import chat, embed
from octavo.server.cohere.dialect import COHERE
from octavo.server.cohere.schema import (
    CohereChatRequest,
    CohereChatResponse,
    CohereEmbedRequest,
    CohereEmbedResponse,
    CohereEvent,
)
from octavo.server.generate import generating
from octavo.server.http.route import Route

COHERE_ROUTES: Sequence[Route] = (
    Route(
        *("POST", "/v2/chat"),
        generating(CohereChatRequest, chat.translate),
        "Answer a conversation, in Cohere's dialect.",
        *(CohereChatRequest, CohereChatResponse, CohereEvent),
        dialect=COHERE,
    ),
    Route(
        *("POST", "/v2/embed"),
        generating(CohereEmbedRequest, embed.translate),
        "Vectors of texts, in Cohere's dialect.",
        *(CohereEmbedRequest, CohereEmbedResponse),
        dialect=COHERE,
    ),
)
