"""The part of the table of routes that has Cohere's own."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.dialects.cohere import chat, embed
from octavo.dialects.cohere.dialect import COHERE
from octavo.dialects.cohere.schema import (
    CohereChatRequest,
    CohereChatResponse,
    CohereEmbedRequest,
    CohereEmbedResponse,
    CohereEvent,
)
from octavo.dialects.common.render import rendering
from octavo.dialects.common.schema.rendered import RenderedRequest
from octavo.serving.generate import generating
from octavo.transport.route import Route

# Clients whose address ends with /cohere, as vLLM has it, find the same routes there.
_PREFIXES = ("", "/cohere")
COHERE_ROUTES: Sequence[Route] = tuple(
    route
    for prefix in _PREFIXES
    for route in (
        Route(
            *("POST", f"{prefix}/v2/chat"),
            generating(CohereChatRequest, chat.translate),
            "Answer a conversation, in Cohere's dialect.",
            *(CohereChatRequest, CohereChatResponse, CohereEvent),
            dialect=COHERE,
        ),
        Route(
            *("POST", f"{prefix}/v2/chat/render", rendering(CohereChatRequest, chat.translate, "")),
            "The request of a conversation in Cohere's dialect as token ids, without running it.",
            *(CohereChatRequest, RenderedRequest),
            dialect=COHERE,
        ),
        Route(
            *("POST", f"{prefix}/v2/embed"),
            generating(CohereEmbedRequest, embed.translate),
            "Vectors of texts, in Cohere's dialect.",
            *(CohereEmbedRequest, CohereEmbedResponse),
            dialect=COHERE,
        ),
    )
)
