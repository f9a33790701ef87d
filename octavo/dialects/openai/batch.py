"""/v1/chat/completions/batch: several conversations in one request, each with its answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from octavo.api.outputs import RequestOutput
from octavo.dialects.common.arrays import at_conversation
from octavo.dialects.common.beams import bind_beams
from octavo.dialects.common.conversation import conversation_job
from octavo.dialects.common.parameters import chat_request
from octavo.dialects.common.schema.chat import (
    MAX_MESSAGES,
    ChatChoice,
    ChatRequest,
    ChatResponse,
    Message,
)
from octavo.dialects.common.schema.unsupported import CHAT_RULES
from octavo.dialects.common.writer import OpenAIWriter, usage_of
from octavo.dialects.openai.chat import ChatWriter
from octavo.serving.answers.tool_use import NO_TOOLS
from octavo.serving.exchange import Exchange
from octavo.serving.operation import GenerationRequest, PreparedRequest, TokenCounts
from octavo.serving.schema.rules import FieldRules
from octavo.serving.translation import TranslationContext
from octavo.transport.errors import ApiError, invalid
from octavo.transport.exchange import encode

MAX_CONVERSATIONS = 256
MAX_ANSWERS = 2048
_OWN = ("stream", "tools", "functions", "echo")  # these need a request for each conversation

Messages = Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]


def _last_messages(request: Any) -> Any:
    """Return the last message of each conversation, without its text."""
    return [[Message(role=each[-1].role, content="")] for each in request.messages]


_BATCH_RULES = replace(CHAT_RULES, of_prompts={**CHAT_RULES.of_prompts, "messages": _last_messages})


class BatchChatRequest(ChatRequest, kw_only=True):
    """A request with several conversations, which are answered alike."""

    rules: ClassVar[FieldRules] = _BATCH_RULES
    schema: ClassVar[dict[str, Any]] = {
        "allOf": [{"properties": {"stream": {"enum": [None, False]}, "echo": {"enum": [False]}}}]
    }
    messages: Annotated[  # type: ignore[assignment]
        list[Messages], Meta(min_length=1, max_length=MAX_CONVERSATIONS)
    ]


def translate(context: TranslationContext, request: BatchChatRequest) -> GenerationRequest:
    """Return the neutral form of a request to continue several conversations."""
    for name in _OWN:
        if getattr(request, name):
            raise invalid(
                f"{name} is for one conversation; send each to /v1/chat/completions", name
            )
    num_answers = len(request.messages) * (request.n or 1)
    if num_answers > MAX_ANSWERS:
        raise invalid(
            f"{len(request.messages)} conversations with n={request.n} make {num_answers} "
            f"answers; at most {MAX_ANSWERS} are made at once",
            "messages",
        )
    requests = conversations_of(request)
    made = chat_request(context, requests[0])
    try:
        for each in requests[1:]:
            made.prompts.append(conversation_job(each, context, NO_TOOLS))
    except ApiError as error:
        raise at_conversation(error, len(made.prompts)) from None
    bind_beams(request, made)  # whose bounds are those of all conversations together
    named = made.named
    made.named = lambda error, index: at_conversation(named(error, index), index)
    made.writer = lambda exchange, prepared: BatchWriter(request, exchange, prepared)
    return made


def conversations_of(request: BatchChatRequest) -> list[ChatRequest]:
    """Return a request for each conversation."""
    fields = msgspec.structs.asdict(request)
    return [ChatRequest(**{**fields, "messages": messages}) for messages in request.messages]


class BatchWriter(OpenAIWriter):
    """The answers to all conversations, in their order; they are not streamed."""

    def __init__(
        self, request: BatchChatRequest, exchange: Exchange, prepared: PreparedRequest
    ) -> None:
        super().__init__(exchange, request, prepared, "chatcmpl-")
        self._writers: list[ChatWriter] = []
        for index, one in enumerate(conversations_of(request)):
            part = replace(
                prepared, prompts=[prepared.prompts[index]], checked=[prepared.checked[index]]
            )
            self._writers.append(ChatWriter(NO_TOOLS, one, exchange, part))

    def whole(
        self,
        outputs: list[RequestOutput],
        counts: TokenCounts,
        explanation: dict[str, Any] | None,
    ) -> Iterator[bytes]:
        """Yield the response; the answers to conversation i begin with choice i × n."""
        choices: list[ChatChoice] = []
        for writer, output in zip(self._writers, outputs, strict=True):
            made = yield from writer.choices(output)
            for choice in made:
                choice.index = len(choices)
                choices.append(choice)
        response = ChatResponse(**self._named, choices=choices, usage=usage_of(counts))
        if explanation is not None:
            response.explain = explanation
        if self._warnings:
            response.warnings = self._warnings
        yield encode(response)
