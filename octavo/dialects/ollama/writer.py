"""Answers in Ollama's form, as lines or as a whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import UNSET

from octavo.api.outputs import RequestOutput
from octavo.core.stats import RequestStats
from octavo.dialects.common.blocks import Block, BlockWriter
from octavo.dialects.common.writer import TEXT
from octavo.dialects.ollama.dialect import error_body, instant, line
from octavo.dialects.ollama.schema import (
    OllamaAnswer,
    OllamaAnswerMessage,
    OllamaCall,
    OllamaCalled,
)
from octavo.formats.deltas import ReasoningDelta, TextDelta, ToolCallDelta
from octavo.serving.exchange import Exchange
from octavo.serving.operation import PreparedRequest, TokenCounts
from octavo.transport.errors import ApiError
from octavo.transport.exchange import encode

_NANOSECONDS = 10**9


class OllamaWriter(BlockWriter[Block]):
    """One answer; a call is written as a whole, since its arguments are an object here."""

    def __init__(self, is_chat: bool, exchange: Exchange, prepared: PreparedRequest) -> None:
        super().__init__(exchange.request_id, Block)
        self._is_chat = is_chat
        self._model = exchange.model_name
        self._created_at = instant(exchange.created)
        self._clock, self._began = exchange.server.clock, exchange.began
        self._stats: RequestStats | None = None

    def frames(
        self, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterable[bytes]:
        """Yield a line for each part of what is new; a call's follows its end, or the answer's."""
        if output.metrics is not None:
            self._stats = output.metrics
        yield from super().frames(prompt_index, output, counts)
        if self._finish is not None:
            yield from self._close()

    def closing(self, counts: TokenCounts, explanation: dict[str, Any] | None) -> Iterable[bytes]:
        """Return the last line, with the numbers."""
        return (line(self._ended(OllamaAnswerMessage(), counts)),)

    def failure(self, error: ApiError) -> bytes:
        """Return the line of an error that ends the stream."""
        return error_body(error) + b"\n"

    def body(self, outputs: list[RequestOutput], counts: TokenCounts) -> Iterable[bytes]:
        """Return the answer with its numbers."""
        self._stats = outputs[0].metrics
        message = OllamaAnswerMessage()
        calls: list[OllamaCall] = []
        for block in self._read(outputs):
            if block.kind is ToolCallDelta:
                calls.append(_call(block))
            elif block.kind is TextDelta:
                message.content += block.text
            else:
                message.thinking = (message.thinking or "") + block.text
        if calls:
            message.tool_calls = calls
        return (encode(self._ended(message, counts)),)

    def _answer(self, message: OllamaAnswerMessage) -> OllamaAnswer:
        answer = OllamaAnswer(model=self._model, created_at=self._created_at)
        if self._is_chat:
            answer.message = message
        else:
            answer.response, answer.thinking = message.content, message.thinking
        return answer

    def _begin(self, block: Block) -> Iterable[bytes]:
        if block.kind is TextDelta:
            self._prepare(line(self._answer(OllamaAnswerMessage(content=TEXT))))
        elif block.kind is ReasoningDelta:
            self._prepare(line(self._answer(OllamaAnswerMessage(thinking=TEXT))))
        return ()

    def _more(self, text: str) -> bytes:
        block = self._open
        if block is None or block.kind is not ToolCallDelta:
            return encode(text).join(self._sides)
        block.texts.append(text)
        return b""

    def _end(self, block: Block) -> Iterable[bytes]:
        if block.kind is not ToolCallDelta:
            return ()
        return (line(self._answer(OllamaAnswerMessage(tool_calls=[_call(block)]))),)

    def _ended(self, message: OllamaAnswerMessage, counts: TokenCounts) -> OllamaAnswer:
        """Return an answer with how it ended, and the numbers."""
        answer = self._answer(message)
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
        return answer


def _nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * _NANOSECONDS))


def _call(block: Block) -> OllamaCall:
    called = OllamaCalled(name=block.name, index=block.call, arguments=block.arguments)
    return OllamaCall(function=called, id=block.call_id)
