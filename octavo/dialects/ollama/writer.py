"""Answers in Ollama's form, as lines or as a whole."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import UNSET

from octavo.api.outputs import RequestOutput
from octavo.core.stats import RequestStats
from octavo.dialects.ollama.dialect import error_body, instant, line
from octavo.dialects.ollama.schema import (
    OllamaAnswer,
    OllamaAnswerMessage,
    OllamaCall,
    OllamaCalled,
)
from octavo.formats.deltas import Delta, FinishDelta, ReasoningDelta, TextDelta, ToolCallDelta
from octavo.serving.answers.call_ids import made_id
from octavo.serving.exchange import Exchange
from octavo.serving.operation import PreparedRequest, TokenCounts
from octavo.transport.errors import ApiError
from octavo.transport.exchange import encode

_NANOSECONDS = 10**9


class OllamaWriter:
    """One answer; a call is written as a whole, since its arguments are an object here."""

    def __init__(self, is_chat: bool, exchange: Exchange, prepared: PreparedRequest) -> None:
        self._is_chat = is_chat
        self._name = exchange.request_id
        self._model = exchange.server.model_name
        self._created_at = instant(exchange.created)
        self._clock, self._began = exchange.server.clock, exchange.began
        self._calls: dict[int, OllamaCalled] = {}  # that are being read, by number
        self._arguments: dict[int, list[str]] = {}  # of those, as JSON
        self._ids: dict[int, str] = {}
        self._finish: FinishDelta | None = None
        self._stats: RequestStats | None = None
        self._before: dict[type[Delta], tuple[bytes, bytes]] = {}  # the sides of prepared lines

    def opening(self, counts: TokenCounts) -> Iterable[bytes]:
        """Return nothing: the first token makes the first line."""
        return ()

    def frames(
        self, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterator[bytes]:
        """Yield a line for each part of what is new."""
        if output.metrics is not None:
            self._stats = output.metrics
        for one in output.outputs:
            for delta in one.deltas:
                if isinstance(delta, ToolCallDelta):
                    yield from self._ended_calls(delta.index)
                    self._note(delta)
                elif isinstance(delta, FinishDelta):
                    yield from self._ended_calls(None)
                    self._finish = delta
                elif delta.text:
                    yield from self._ended_calls(None)
                    yield self._text_line(delta)

    def closing(self, counts: TokenCounts, explanation: dict[str, Any] | None) -> Iterable[bytes]:
        """Return the last line, with the numbers."""
        answer = self._answer(OllamaAnswerMessage())
        self._end(answer, counts)
        return (line(answer),)

    def failure(self, error: ApiError) -> bytes:
        """Return the line of an error that ends the stream."""
        return error_body(error) + b"\n"

    def whole(
        self,
        outputs: list[RequestOutput],
        counts: TokenCounts,
        explanation: dict[str, Any] | None,
    ) -> Iterable[bytes]:
        """Return the body of the response."""
        (output,) = outputs
        self._stats = output.metrics
        texts: dict[type[Delta], list[str]] = {TextDelta: [], ReasoningDelta: []}
        for delta in output.outputs[0].deltas:
            if isinstance(delta, ToolCallDelta):
                self._note(delta)
            elif isinstance(delta, FinishDelta):
                self._finish = delta
            else:
                texts[type(delta)].append(delta.text)
        message = OllamaAnswerMessage(content="".join(texts[TextDelta]))
        if texts[ReasoningDelta]:
            message.thinking = "".join(texts[ReasoningDelta])
        if self._calls:
            message.tool_calls = [self._call(index) for index in sorted(self._calls)]
        answer = self._answer(message)
        self._end(answer, counts)
        return (encode(answer),)

    def _answer(self, message: OllamaAnswerMessage) -> OllamaAnswer:
        answer = OllamaAnswer(model=self._model, created_at=self._created_at)
        if self._is_chat:
            answer.message = message
        else:
            answer.response, answer.thinking = message.content, message.thinking
        return answer

    def _text_line(self, delta: TextDelta | ReasoningDelta) -> bytes:
        """Return a line with text, which is put into a prepared one."""
        kind = type(delta)
        sides = self._before.get(kind)
        if sides is None:
            message = OllamaAnswerMessage(content="\0")
            if kind is ReasoningDelta:
                message = OllamaAnswerMessage(thinking="\0")
            before, _, after = line(self._answer(message)).rpartition(encode("\0"))
            sides = self._before[kind] = before, after
        return sides[0] + encode(delta.text) + sides[1]

    def _note(self, delta: ToolCallDelta) -> None:
        if delta.index not in self._calls:
            self._calls[delta.index] = OllamaCalled(name=delta.name or "", index=delta.index)
            self._arguments[delta.index] = []
            self._ids[delta.index] = delta.call_id or made_id(f"{self._name}/{delta.index}")
        self._arguments[delta.index].append(delta.arguments)

    def _ended_calls(self, current: int | None) -> Sequence[bytes]:
        """Return the line of the calls that are complete: all but the one that goes on."""
        ended = [index for index in sorted(self._calls) if index != current]
        if not ended:
            return ()
        calls = [self._call(index) for index in ended]
        for index in ended:
            del self._calls[index]
        return (line(self._answer(OllamaAnswerMessage(tool_calls=calls))),)

    def _call(self, index: int) -> OllamaCall:
        called = self._calls[index]
        called.arguments = _arguments("".join(self._arguments.pop(index)))
        return OllamaCall(function=called, id=self._ids[index])

    def _end(self, answer: OllamaAnswer, counts: TokenCounts) -> None:
        """Add how the answer ended, and the numbers."""
        reason = UNSET if self._finish is None else self._finish.reason
        answer.done = True
        answer.done_reason = reason if reason in ("length", "abort") else "stop"
        answer.total_duration = _nanoseconds(self._clock() - self._began)
        answer.load_duration = 0
        answer.prompt_eval_count, answer.eval_count = counts.prompt, counts.generated
        stats = self._stats
        answer.prompt_eval_duration = answer.eval_duration = 0
        if stats is not None and stats.first_token_at is not None:
            began = stats.first_planned_at or stats.added_at
            answer.prompt_eval_duration = _nanoseconds(stats.first_token_at - began)
            if stats.finished_at is not None:
                # Clients divide the number of tokens by this, also when there is one token.
                answer.eval_duration = _nanoseconds(stats.finished_at - stats.first_token_at) or 1


def _nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * _NANOSECONDS))


def _arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a call; what is no JSON object is kept as text under one name."""
    try:
        value = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"invalid_json": text}
