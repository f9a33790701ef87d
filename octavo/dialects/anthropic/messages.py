"""/v1/messages: answers to conversations, whole or as events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

import msgspec

from octavo.api.outputs import RequestOutput
from octavo.api.pooling.tasks import check_generates
from octavo.dialects.anthropic.conversation import conversation_job, with_own_field
from octavo.dialects.anthropic.dialect import ID_PREFIX, error_event
from octavo.dialects.anthropic.schema import (
    Answer,
    CountRequest,
    CountResponse,
    MessagesRequest,
    MessageUsage,
)
from octavo.dialects.anthropic.tools import shape_of, tool_use, with_own_place
from octavo.dialects.common.events import event
from octavo.formats.deltas import Delta, FinishDelta, ReasoningDelta, TextDelta, ToolCallDelta
from octavo.serving.answers.call_ids import with_id
from octavo.serving.exchange import Exchange
from octavo.serving.generate import admitted
from octavo.serving.large_bodies import prompt_of, read
from octavo.serving.operation import GenerationRequest, PreparedRequest, TokenCounts
from octavo.serving.preparation import PLACES, refusals
from octavo.serving.translation import TranslationContext
from octavo.transport.errors import ApiError
from octavo.transport.exchange import encode
from octavo.workers.jobs import PromptJob

D = TypeVar("D", bound=Delta)
_SAMPLING = ("temperature", "top_p", "top_k")
_STOP_REASONS = {"length": "max_tokens", "abort": "max_tokens", "tool_calls": "tool_use"}
_FIELDS = {"stop": "stop_sequences", "max_tokens": "max_tokens", "extra_args": "vllm_xargs"}


def translate(context: TranslationContext, request: MessagesRequest) -> GenerationRequest:
    """Return the neutral form of a request to continue a conversation."""
    context.check_model(request.model)
    sampling: dict[str, Any] = {}
    for name in _SAMPLING:
        value = getattr(request, name)
        if value is not None:
            sampling[name] = value
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
        named=partial(named, request),
        # Clients of this API ask for more than smaller models can write.
        default_max_tokens=request.max_tokens,
        may_lack_budget=True,  # they ask any model for thinking
        is_stream=bool(request.stream),
        cache_salt=request.cache_salt,
        shape=shape,
    )
    context.formats.bind(asked, use, context.facts.vocabulary)
    return asked


def named(request: MessagesRequest, error: ApiError, index: int) -> ApiError:
    """Return an error of the checks with the name of its field in this dialect."""
    own = _FIELDS.get(error.param or "", error.param)
    if error.param == "extra_args":
        error.message = error.message.replace("extra_args", "vllm_xargs")
    error.param = own
    return with_own_field(with_own_place(request, error))


async def count_tokens(exchange: Exchange) -> None:
    """Return the number of tokens of a conversation."""
    async with admitted(exchange):
        _, job, prepared = await read(exchange, CountRequest, _count_job)
        try:
            made = await prompt_of(exchange, job, prepared)
        except ApiError as error:
            raise with_own_field(error) from None
        await exchange.respond_json(CountResponse(input_tokens=made.num_tokens))


def _count_job(context: TranslationContext, request: CountRequest) -> PromptJob:
    context.check_model(request.model)
    with refusals():
        check_generates(context.facts, PLACES)
    job = conversation_job(request, context, tool_use(request))
    return msgspec.structs.replace(job, wants_text=False)


class MessagesWriter:
    """An answer in blocks of content: reasoning, text and calls, in the order of the text."""

    def __init__(self, exchange: Exchange, prepared: PreparedRequest) -> None:
        self._id = f"{ID_PREFIX}{exchange.request_id}"
        self._model = exchange.server.model_name
        self._index = -1  # of the block that is open, or was last
        self._kind: type[Delta] | None = None  # of the open block
        self._calls = -1  # the number of the last call
        self._before = b""  # what precedes the new part of the open block in its events
        self._finish: FinishDelta | None = None

    def opening(self, counts: TokenCounts) -> Iterable[bytes]:
        """Return the event with the message, which has no content yet."""
        answer = Answer(id=self._id, model=self._model, content=[], usage=usage_of(counts))
        return (event("message_start", {"message": msgspec.to_builtins(answer)}),)

    def frames(
        self, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterator[bytes]:
        """Yield the events of the deltas; the first of a block opens it."""
        for one in output.outputs:
            for delta in one.deltas:
                yield from self._events(self._with_id(delta))

    def closing(self, counts: TokenCounts, explanation: dict[str, Any] | None) -> Iterable[bytes]:
        """Yield the end of the open block, how the answer ended, and the end."""
        yield from self._close()
        reason, sequence = stop_reason(self._finish, self._calls >= 0)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        usage = msgspec.to_builtins(usage_of(counts))
        yield event("message_delta", {"delta": delta, "usage": usage})
        yield event("message_stop", {})

    def failure(self, error: ApiError) -> bytes:
        """Return the event of an error that ends the stream."""
        return error_event(error)

    def whole(
        self,
        outputs: list[RequestOutput],
        counts: TokenCounts,
        explanation: dict[str, Any] | None,
    ) -> Iterable[bytes]:
        """Return the body of the response."""
        content: list[dict[str, Any]] = []
        finish: FinishDelta | None = None
        for delta in outputs[0].outputs[0].deltas:
            if isinstance(delta, FinishDelta):
                finish = delta
            else:
                _add(content, self._with_id(delta))
        has_calls = False
        for block in content:
            if block["type"] == "tool_use":
                has_calls = True
                block["input"] = _arguments(block["input"])
                del block["index"]
        reason, sequence = stop_reason(finish, has_calls)
        answer = Answer(
            id=self._id,
            model=self._model,
            content=content,
            usage=usage_of(counts),
            stop_reason=reason,
            stop_sequence=sequence,
        )
        return (encode(answer),)

    def _with_id(self, delta: D) -> D | ToolCallDelta:
        """Give a call that begins its id."""
        return with_id(delta, self._id, "toolu_") if isinstance(delta, ToolCallDelta) else delta

    def _events(self, delta: Delta) -> Iterator[bytes]:
        if isinstance(delta, FinishDelta):  # a text's end belongs to the frame of the text
            self._finish = delta
            return
        if type(delta) is not self._kind or (
            isinstance(delta, ToolCallDelta) and delta.index != self._calls
        ):
            yield from self._close()
            yield from self._open(delta)
        new = delta.arguments if isinstance(delta, ToolCallDelta) else delta.text
        if new:
            yield self._before + encode(new) + b"}}\n\n"

    def _open(self, delta: TextDelta | ReasoningDelta | ToolCallDelta) -> Iterator[bytes]:
        self._index += 1
        self._kind = type(delta)
        kind, part = "text_delta", "text"
        if isinstance(delta, ReasoningDelta):
            kind, part = "thinking_delta", "thinking"
        elif isinstance(delta, ToolCallDelta):
            kind, part = "input_json_delta", "partial_json"
            self._calls = delta.index
        # A prepared event, of which only the new part changes.
        frame = event(
            "content_block_delta", {"index": self._index, "delta": {"type": kind, part: 0}}
        )
        self._before = frame.removesuffix(b"0}}\n\n")
        block = _new_block(delta)
        if isinstance(delta, ToolCallDelta):
            block["input"] = {}
            del block["index"]
        yield event("content_block_start", {"index": self._index, "content_block": block})

    def _close(self) -> Iterator[bytes]:
        if self._kind is ReasoningDelta:  # clients expect one, and send it back
            delta = {"type": "signature_delta", "signature": ""}
            yield event("content_block_delta", {"index": self._index, "delta": delta})
        if self._kind is not None:
            yield event("content_block_stop", {"index": self._index})
        self._kind = None


def _new_block(delta: TextDelta | ReasoningDelta | ToolCallDelta) -> dict[str, Any]:
    """Return an empty block for a delta; that of a call keeps its number and its JSON text."""
    if isinstance(delta, ReasoningDelta):
        return {"type": "thinking", "thinking": "", "signature": ""}
    if isinstance(delta, TextDelta):
        return {"type": "text", "text": ""}
    return {
        "type": "tool_use",
        "id": delta.call_id or "",
        "name": delta.name or "",
        "input": "",
        "index": delta.index,
    }


def _add(content: list[dict[str, Any]], delta: TextDelta | ReasoningDelta | ToolCallDelta) -> None:
    """Append a delta to the last block, or begin another."""
    last = content[-1] if content else {"type": ""}
    new = _new_block(delta)
    if last["type"] != new["type"] or last.get("index") != new.get("index"):
        content.append(last := new)
    if isinstance(delta, ToolCallDelta):
        last["input"] += delta.arguments
    else:
        last[new["type"]] += delta.text


def _arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a call; what is no JSON object is kept as text under one name."""
    try:
        value = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"invalid_json": text}


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
