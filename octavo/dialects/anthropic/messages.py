"""/v1/messages: answers to conversations, whole or as events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from octavo.api.outputs import RequestOutput
from octavo.api.pooling.served import check_generates
from octavo.dialects.anthropic.conversation import PROMPT_NAMES, conversation_job
from octavo.dialects.anthropic.dialect import ID_PREFIX, error_event
from octavo.dialects.anthropic.schema import (
    Answer,
    CountRequest,
    CountResponse,
    MessagesRequest,
    MessageUsage,
)
from octavo.dialects.anthropic.tools import shape_names, shape_of, tool_use
from octavo.dialects.common.blocks import Block, BlockWriter
from octavo.dialects.common.dialect import event
from octavo.dialects.common.parameters import given_fields
from octavo.dialects.common.writer import TEXT
from octavo.formats.deltas import Delta, FinishDelta, ReasoningDelta, TextDelta, ToolCallDelta
from octavo.serving.exchange import Exchange
from octavo.serving.generate import admitted
from octavo.serving.large_bodies import prompt_of, read
from octavo.serving.operation import GenerationRequest, PreparedRequest, TokenCounts
from octavo.serving.preparation import PLACES, refusals
from octavo.serving.translation import TranslationContext
from octavo.transport.exchange import encode
from octavo.workers.jobs import PromptJob

_SAMPLING = ("temperature", "top_p", "top_k")
_STOP_REASONS = {"length": "max_tokens", "abort": "max_tokens", "tool_calls": "tool_use"}
# The types of deltas, and where their texts are.
_DELTAS: dict[type[Delta], tuple[str, str]] = {
    TextDelta: ("text_delta", "text"),
    ReasoningDelta: ("thinking_delta", "thinking"),
    ToolCallDelta: ("input_json_delta", "partial_json"),
}
_NAMES = {"stop": "stop_sequences", "extra_args": "vllm_xargs", **PROMPT_NAMES}


def translate(context: TranslationContext, request: MessagesRequest) -> GenerationRequest:
    """Return the neutral form of a request to continue a conversation."""
    sampling = given_fields(request, _SAMPLING)
    if request.stop_sequences:
        sampling["stop"] = request.stop_sequences
    if request.vllm_xargs:
        sampling["extra_args"] = request.vllm_xargs
    thinking = request.thinking
    if thinking is not None and thinking.type == "enabled" and thinking.budget_tokens is not None:
        sampling["thinking_token_budget"] = thinking.budget_tokens
    use = tool_use(request)
    context.formats.check(use)
    shape = shape_of(request)
    asked = GenerationRequest(
        prompts=[conversation_job(request, context, use)],
        sampling=sampling,
        writer=MessagesWriter,
        named=lambda error, index: error.renamed({**_NAMES, **shape_names(request)}),
        # Clients of this API ask for more than smaller models can write.
        default_max_tokens=request.max_tokens,
        may_lack_budget=True,  # they ask any model for thinking
        is_stream=bool(request.stream),
        cache_salt=request.cache_salt,
        shape=shape,
    )
    context.formats.bind(asked, use, context.facts.vocabulary)
    return asked


async def count_tokens(exchange: Exchange) -> None:
    """Return the number of tokens of a conversation."""
    async with admitted(exchange):
        _, job, prepared = await read(exchange, CountRequest, _count_job)
        made = await prompt_of(exchange, job, prepared, PROMPT_NAMES)
        await exchange.respond_json(CountResponse(input_tokens=made.num_tokens))


def _count_job(context: TranslationContext, request: CountRequest) -> PromptJob:
    with refusals():
        check_generates(context.facts, PLACES)
    job = conversation_job(request, context, tool_use(request))
    return msgspec.structs.replace(job, wants_text=False)


class MessagesWriter(BlockWriter[Block]):
    """An answer in blocks of content."""

    id_prefix = "toolu_"
    failure = staticmethod(error_event)

    def __init__(self, exchange: Exchange, prepared: PreparedRequest) -> None:
        super().__init__(f"{ID_PREFIX}{exchange.request_id}", Block)
        self._model = exchange.model_name

    def opening(self, counts: TokenCounts) -> Iterable[bytes]:
        """Return the event with the message, which has no content yet."""
        message = msgspec.to_builtins(self._answer([], counts))
        return (event("message_start", {"message": message}),)

    def closing(self, counts: TokenCounts, explanation: dict[str, Any] | None) -> Iterable[bytes]:
        """Yield the end of the open block, how the answer ended, and the end."""
        yield from self._close()
        reason, sequence = stop_reason(self._finish, self._has_calls)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        usage = msgspec.to_builtins(usage_of(counts))
        yield event("message_delta", {"delta": delta, "usage": usage})
        yield event("message_stop", {})

    def body(self, outputs: list[RequestOutput], counts: TokenCounts) -> Iterable[bytes]:
        """Return the message with all of its content."""
        answer = self._answer([_shown(block) for block in self._read(outputs)], counts)
        answer.stop_reason, answer.stop_sequence = stop_reason(self._finish, self._has_calls)
        return (encode(answer),)

    def _answer(self, content: list[dict[str, Any]], counts: TokenCounts) -> Answer:
        usage = usage_of(counts)
        return Answer(id=self._name, model=self._model, content=content, usage=usage)

    def _begin(self, block: Block) -> Iterable[bytes]:
        kind, part = _DELTAS[block.kind]
        delta = {"type": kind, part: TEXT}
        self._prepare(event("content_block_delta", {"index": block.index, "delta": delta}))
        begun = {"index": block.index, "content_block": _shown(block)}
        yield event("content_block_start", begun)

    def _end(self, block: Block) -> Iterable[bytes]:
        if block.kind is ReasoningDelta:  # clients expect one, and send it back
            delta = {"type": "signature_delta", "signature": ""}
            yield event("content_block_delta", {"index": block.index, "delta": delta})
        yield event("content_block_stop", {"index": block.index})


def _shown(block: Block) -> dict[str, Any]:
    """Return a block in the form of this dialect."""
    if block.kind is ReasoningDelta:
        return {"type": "thinking", "thinking": block.text, "signature": ""}
    if block.kind is TextDelta:
        return {"type": "text", "text": block.text}
    called = {"id": block.call_id, "name": block.name, "input": block.arguments}
    return {"type": "tool_use", **called}


def stop_reason(finish: FinishDelta | None, has_calls: bool) -> tuple[str, str | None]:
    """Return the reason for the end in this dialect, and the stop sequence."""
    if finish is None:
        return "end_turn", None
    if isinstance(finish.stop, str):
        return "stop_sequence", finish.stop
    reason = _STOP_REASONS.get(finish.reason, "end_turn")
    return ("tool_use" if has_calls and reason == "end_turn" else reason), None


def usage_of(counts: TokenCounts) -> MessageUsage:
    """Return the token counts in the form of this dialect."""
    return MessageUsage(
        input_tokens=counts.prompt - counts.cached,
        output_tokens=counts.generated,
        cache_read_input_tokens=counts.cached,
    )
