"""The answers of /v2/chat: blocks of content, a plan and calls, whole or as events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from octavo.api.outputs import RequestOutput
from octavo.dialects.cohere.dialect import error_events
from octavo.dialects.cohere.schema import CohereAnswer, CohereChatResponse, CohereUsage
from octavo.dialects.common.dialect import DONE
from octavo.dialects.common.events import event
from octavo.dialects.common.writer import TEXT
from octavo.formats.deltas import Delta, FinishDelta, ReasoningDelta, TextDelta, ToolCallDelta
from octavo.serving.answers.call_ids import with_id
from octavo.serving.exchange import Exchange
from octavo.serving.operation import PreparedRequest, TokenCounts
from octavo.transport.errors import ApiError
from octavo.transport.exchange import encode

_REASONS = {"length": "MAX_TOKENS", "abort": "MAX_TOKENS"}


class CohereWriter:
    """An answer whose reasoning is a block of content or, before calls, a plan."""

    def __init__(self, is_plan: bool, exchange: Exchange, prepared: PreparedRequest) -> None:
        self._is_plan = is_plan
        self._id = exchange.request_id
        self._index = -1  # of the block of content that is open, or was last
        self._kind: type[Delta] | None = None  # of what is open
        self._calls = -1  # the number of the last call
        self._sides: list[bytes] = []  # what is around the new part in its event
        self._finish: FinishDelta | None = None

    def opening(self, counts: TokenCounts) -> Iterable[bytes]:
        """Return the event with the message, which has no content yet."""
        message = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": []}
        return (event("message-start", {"id": self._id, "delta": {"message": message}}),)

    def frames(
        self, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterator[bytes]:
        """Yield the events of the deltas; the first of a block opens it."""
        for one in output.outputs:
            for delta in one.deltas:
                yield from self._events(delta)

    def closing(self, counts: TokenCounts, explanation: dict[str, Any] | None) -> Iterable[bytes]:
        """Yield the end of the open block, how the answer ended, and the end."""
        yield from self._close()
        reason = _finish_reason(self._finish, has_calls=self._calls >= 0)
        usage = msgspec.to_builtins(_usage(counts))
        yield event("message-end", {"delta": {"finish_reason": reason, "usage": usage}})
        yield DONE

    def failure(self, error: ApiError) -> bytes:
        """Return the events of an error that ends the stream."""
        return error_events(error)

    def whole(
        self,
        outputs: list[RequestOutput],
        counts: TokenCounts,
        explanation: dict[str, Any] | None,
    ) -> Iterable[bytes]:
        """Return the body of the response."""
        content: list[dict[str, Any]] = []
        calls: list[dict[str, Any]] = []
        plan, finish = "", None
        for delta in outputs[0].outputs[0].deltas:
            if isinstance(delta, FinishDelta):
                finish = delta
            elif isinstance(delta, ToolCallDelta):
                if delta.index == len(calls):
                    calls.append(_new_call(with_id(delta, self._id)))
                calls[-1]["function"]["arguments"] += delta.arguments
            elif isinstance(delta, ReasoningDelta) and self._is_plan:
                plan += delta.text
            else:
                name = _part(delta)
                if not content or content[-1]["type"] != name:
                    content.append({"type": name, name: ""})
                content[-1][name] += delta.text
        answer = CohereAnswer()
        if plan:
            answer.tool_plan = plan
        if calls:
            answer.tool_calls = calls
        if content or not calls:
            answer.content = content
        reason = _finish_reason(finish, has_calls=bool(calls))
        usage = _usage(counts)
        response = CohereChatResponse(
            id=self._id, finish_reason=reason, message=answer, usage=usage
        )
        return (encode(response),)

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
            yield encode(new).join(self._sides)

    def _open(self, delta: TextDelta | ReasoningDelta | ToolCallDelta) -> Iterator[bytes]:
        self._kind = type(delta)
        if isinstance(delta, ToolCallDelta):
            self._calls = delta.index
            call = _new_call(with_id(delta, self._id))
            where = {"index": delta.index}
            yield event("tool-call-start", {**where, "delta": {"message": {"tool_calls": call}}})
            part: dict[str, Any] = {"tool_calls": {"function": {"arguments": TEXT}}}
            self._prepare("tool-call-delta", where, part)
        elif isinstance(delta, ReasoningDelta) and self._is_plan:
            self._prepare("tool-plan-delta", {}, {"tool_plan": TEXT})
        else:
            self._index += 1
            where, name = {"index": self._index}, _part(delta)
            begun = {"content": {"type": name, name: ""}}
            yield event("content-start", {**where, "delta": {"message": begun}})
            self._prepare("content-delta", where, {"content": {name: TEXT}})

    def _prepare(self, name: str, where: dict[str, int], part: dict[str, Any]) -> None:
        """Prepare an event of which only the new part changes."""
        frame = event(name, {**where, "delta": {"message": part}})
        self._sides = frame.split(encode(TEXT))

    def _close(self) -> Iterator[bytes]:
        if self._kind is ToolCallDelta:
            yield event("tool-call-end", {"index": self._calls})
        elif self._kind is TextDelta or (self._kind is ReasoningDelta and not self._is_plan):
            yield event("content-end", {"index": self._index})
        self._kind = None


def _part(delta: TextDelta | ReasoningDelta) -> str:
    """Return the type of a block of content, which is the name of its text too."""
    return "thinking" if isinstance(delta, ReasoningDelta) else "text"


def _new_call(delta: ToolCallDelta) -> dict[str, Any]:
    function = {"name": delta.name or "", "arguments": ""}
    return {"id": delta.call_id or "", "type": "function", "function": function}


def _finish_reason(finish: FinishDelta | None, *, has_calls: bool) -> str:
    if finish is None:
        return "COMPLETE"
    if isinstance(finish.stop, str):
        return "STOP_SEQUENCE"
    return _REASONS.get(finish.reason, "TOOL_CALL" if has_calls else "COMPLETE")


def _usage(counts: TokenCounts) -> CohereUsage:
    tokens = {"input_tokens": counts.prompt, "output_tokens": counts.generated}
    return CohereUsage(billed_units=tokens, tokens=tokens, cached_tokens=counts.cached)
