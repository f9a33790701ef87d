"""The answers of /v2/chat: blocks of content, a plan and calls, whole or as events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from octavo.api.outputs import RequestOutput
from octavo.dialects.cohere.dialect import error_events
from octavo.dialects.cohere.schema import CohereAnswer, CohereChatResponse, CohereUsage
from octavo.dialects.common.blocks import Block, BlockWriter
from octavo.dialects.common.dialect import DONE, event
from octavo.dialects.common.writer import TEXT
from octavo.formats.deltas import FinishDelta, ReasoningDelta, ToolCallDelta
from octavo.serving.exchange import Exchange
from octavo.serving.operation import PreparedRequest, TokenCounts
from octavo.transport.exchange import encode

_REASONS = {"length": "MAX_TOKENS", "abort": "MAX_TOKENS"}


class CohereWriter(BlockWriter[Block]):
    """An answer whose reasoning is a block of content or, before calls, a plan."""

    failure = staticmethod(error_events)

    def __init__(self, is_plan: bool, exchange: Exchange, prepared: PreparedRequest) -> None:
        super().__init__(exchange.request_id, Block)
        self._is_plan = is_plan
        self._index = -1  # of the block of content that is open, or was last

    def opening(self, counts: TokenCounts) -> Iterable[bytes]:
        """Return the event with the message, which has no content yet."""
        message = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": []}
        return (event("message-start", {"id": self._name, "delta": {"message": message}}),)

    def closing(self, counts: TokenCounts, explanation: dict[str, Any] | None) -> Iterable[bytes]:
        """Yield the events that end the open block, the message and the stream."""
        yield from self._close()
        reason = _finish_reason(self._finish, has_calls=self._has_calls)
        usage = msgspec.to_builtins(_usage(counts))
        yield event("message-end", {"delta": {"finish_reason": reason, "usage": usage}})
        yield DONE

    def body(self, outputs: list[RequestOutput], counts: TokenCounts) -> Iterable[bytes]:
        """Return the response with the whole message."""
        content: list[dict[str, Any]] = []
        calls: list[dict[str, Any]] = []
        plan = ""
        for block in self._read(outputs):
            if block.kind is ToolCallDelta:
                calls.append(_call(block))
            elif self._is_of_plan(block):
                plan += block.text
            else:
                name = _part(block)
                if not content or content[-1]["type"] != name:
                    content.append({"type": name, name: ""})
                content[-1][name] += block.text
        answer = CohereAnswer()
        if plan:
            answer.tool_plan = plan
        if calls:
            answer.tool_calls = calls
        if content or not calls:
            answer.content = content
        reason = _finish_reason(self._finish, has_calls=bool(calls))
        usage = _usage(counts)
        response = CohereChatResponse(
            id=self._name, finish_reason=reason, message=answer, usage=usage
        )
        return (encode(response),)

    def _is_of_plan(self, block: Block) -> bool:
        return self._is_plan and block.kind is ReasoningDelta

    def _begin(self, block: Block) -> Iterable[bytes]:
        if block.kind is ToolCallDelta:
            where = {"index": block.call}
            begun = {"message": {"tool_calls": _call(block)}}
            yield event("tool-call-start", {**where, "delta": begun})
            part: dict[str, Any] = {"tool_calls": {"function": {"arguments": TEXT}}}
            self._prepare(event("tool-call-delta", {**where, "delta": {"message": part}}))
        elif self._is_of_plan(block):
            self._prepare(event("tool-plan-delta", {"delta": {"message": {"tool_plan": TEXT}}}))
        else:
            self._index += 1
            where, name = {"index": self._index}, _part(block)
            begun = {"message": {"content": {"type": name, name: ""}}}
            yield event("content-start", {**where, "delta": begun})
            part = {"content": {name: TEXT}}
            self._prepare(event("content-delta", {**where, "delta": {"message": part}}))

    def _end(self, block: Block) -> Iterable[bytes]:
        if block.kind is ToolCallDelta:
            yield event("tool-call-end", {"index": block.call})
        elif not self._is_of_plan(block):
            yield event("content-end", {"index": self._index})


def _part(block: Block) -> str:
    """Return the type of a block of content, which is the name of its text too."""
    return "thinking" if block.kind is ReasoningDelta else "text"


def _call(block: Block) -> dict[str, Any]:
    function = {"name": block.name, "arguments": block.text}
    return {"id": block.call_id, "type": "function", "function": function}


def _finish_reason(finish: FinishDelta | None, *, has_calls: bool) -> str:
    if finish is None:
        return "COMPLETE"
    if isinstance(finish.stop, str):
        return "STOP_SEQUENCE"
    return _REASONS.get(finish.reason, "TOOL_CALL" if has_calls else "COMPLETE")


def _usage(counts: TokenCounts) -> CohereUsage:
    tokens = {"input_tokens": counts.prompt, "output_tokens": counts.generated}
    return CohereUsage(billed_units=tokens, tokens=tokens, cached_tokens=counts.cached)
