"""The part of the table of routes that has Anthropic's."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.dialects.anthropic import messages
from octavo.dialects.anthropic.dialect import ANTHROPIC, ID_PREFIX
from octavo.dialects.anthropic.schema import (
    Answer,
    CountRequest,
    CountResponse,
    MessagesRequest,
    StreamEvent,
)
from octavo.dialects.common.render import rendering
from octavo.dialects.common.schema.rendered import RenderedRequest
from octavo.serving.generate import generating
from octavo.transport.route import Route

ANTHROPIC_ROUTES: Sequence[Route] = (
    Route(
        *("POST", "/v1/messages"),
        generating(MessagesRequest, messages.translate),
        "Answer a conversation, in Anthropic's dialect.",
        *(MessagesRequest, Answer, StreamEvent),
        dialect=ANTHROPIC,
    ),
    Route(
        *("POST", "/v1/messages/count_tokens", messages.count_tokens),
        "The number of tokens of a conversation, in Anthropic's dialect.",
        *(CountRequest, CountResponse),
        dialect=ANTHROPIC,
    ),
    Route(
        *("POST", "/v1/messages/render", rendering(MessagesRequest, messages.translate, ID_PREFIX)),
        "The request of a conversation in Anthropic's dialect as token ids, without running it.",
        *(MessagesRequest, RenderedRequest),
        dialect=ANTHROPIC,
    ),
)
