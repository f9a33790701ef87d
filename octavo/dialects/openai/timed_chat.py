"""Chats with what llama-server adds: times, the progress of the prompt, the prompt itself.

At /v1/chat/completions they are there if a request asks for them; at /chat/completions, which is
llama.cpp's own path, the times always are, the prompt is where the server's log is at its most
detailed (--verbose), and a conversation that ends with an answer goes on with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from octavo.api.outputs import CompletionOutput, RequestOutput
from octavo.core.stats import RequestStats
from octavo.dialects.common.dialect import frame
from octavo.dialects.common.logprobs import Pieces
from octavo.dialects.common.parameters import chat_request
from octavo.dialects.common.schema.chat import (
    ChatRequest,
    ChatResponse,
    ChunkChoice,
    Delta,
    Verbose,
)
from octavo.dialects.common.timings import LlamaTimings, ProgressReader, timings_of
from octavo.dialects.common.writer import ANSWERER
from octavo.dialects.openai.chat import ChatWriter
from octavo.formats.deltas import FinishDelta
from octavo.serving.answers.tool_use import ToolUse
from octavo.serving.exchange import Exchange
from octavo.serving.operation import GenerationRequest, PreparedRequest, TokenCounts
from octavo.serving.translation import TranslationContext
from octavo.transport.errors import invalid
from octavo.transport.exchange import encode


def translate(context: TranslationContext, request: ChatRequest) -> GenerationRequest:
    """Return the neutral form of a chat; its answer is timed if it asks for that."""
    if not (request.timings_per_token or request.return_progress or request.verbose):
        return chat_request(context, request, ChatWriter)
    return _timed(context, request, is_llamas=False)


class LlamaChatRequest(ChatRequest, kw_only=True):
    """The request of /chat/completions."""


def translate_for_llama(
    context: TranslationContext, request: LlamaChatRequest
) -> GenerationRequest:
    """Return the neutral form of a chat at llama.cpp's own path."""
    asked = _continued(request)
    if context.is_verbose and asked.verbose is None:
        asked = msgspec.structs.replace(asked, verbose=True)
    return _timed(context, asked, is_llamas=True)


def _timed(
    context: TranslationContext, request: ChatRequest, *, is_llamas: bool
) -> GenerationRequest:
    asked = chat_request(context, request, partial(TimedChatWriter, is_llamas))
    asked.wants_text |= bool(request.verbose)
    asked.reports_prompt = bool(request.stream and request.return_progress)
    return asked


def _continued(request: ChatRequest) -> ChatRequest:
    """Return a request whose last message is continued if it is an answer, as llama-server does."""
    messages = request.messages
    is_open = request.add_generation_prompt is None and not request.continue_final_message
    last = messages[-1]
    if not is_open or last.role != ANSWERER or not last.content or last.tool_calls:
        return request
    if len(messages) > 1 and messages[-2].role == ANSWERER:
        raise invalid(
            "messages end with two answers, and one is continued; join them, or set "
            "add_generation_prompt=true for a new one",
            "messages",
        )
    return msgspec.structs.replace(request, continue_final_message=True)


class TimedChatWriter(ChatWriter):
    """Chat answers with the times of their generation."""

    def __init__(
        self,
        is_llamas: bool,
        use: ToolUse,
        request: ChatRequest,
        exchange: Exchange,
        prepared: PreparedRequest,
    ) -> None:
        super().__init__(use, request, exchange, prepared)
        self._is_each = bool(request.timings_per_token)
        self._sends_text_only = False
        self._is_llamas = is_llamas
        self._opens_with_null |= is_llamas
        self._progress = ProgressReader() if request.return_progress else None
        self._clock = exchange.server.clock
        self._stats: RequestStats | None = None
        self._counts: TokenCounts | None = None  # once there is a token

    def frames(
        self, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterator[bytes]:
        """Yield a chunk for each part of the prompt that is new, and for what is generated."""
        self._stats = output.metrics or self._stats
        if self._progress is not None and self._stats is not None:
            yield from self._progressed(self._progress, self._stats)
        if output.outputs:
            self._counts = counts
            yield from super().frames(prompt_index, output, counts)

    def _frames_of(self, one: CompletionOutput, counts: TokenCounts) -> Iterator[bytes]:
        """Yield chunks; at llama.cpp's own path the one that ends an answer has nothing else."""
        if self._is_llamas and len(one.deltas) > 1 and isinstance(one.deltas[-1], FinishDelta):
            yield from super()._frames_of(replace(one, deltas=one.deltas[:-1]), counts)
            one = replace(one, deltas=one.deltas[-1:], token_ids=[], logprobs=None)
        yield from super()._frames_of(one, counts)

    def _progressed(self, reader: ProgressReader, stats: RequestStats) -> Iterator[bytes]:
        for progress, timings in reader.new(stats):
            chunk = super()._chunk(ChunkChoice(index=0, delta=Delta()))
            chunk.prompt_progress = progress
            if self._is_each:
                chunk.timings = timings
            yield frame(encode(chunk))
        if stats.first_token_at is not None:
            self._progress = None

    def closing(self, counts: TokenCounts, explanation: dict[str, Any] | None) -> Iterable[bytes]:
        """Return the last chunk and the end."""
        self._counts = counts
        return super().closing(counts, explanation)

    def _chunk(self, *choices: Any, counts: TokenCounts | None = None) -> Any:
        """Return a chunk, with the times if it is an end, or if each has them."""
        chunk = super()._chunk(*choices, counts=counts)
        is_end = not choices or any(each.finish_reason for each in choices)
        if self._counts is not None and (is_end or self._is_each):
            chunk.timings = self._timings(self._counts)
            if is_end and self._request.verbose:
                chunk.verbose = self._verbose(self._counts)
        return chunk

    def _response(self, outputs: list[RequestOutput], counts: TokenCounts) -> Pieces[ChatResponse]:
        self._stats = outputs[0].metrics
        response = yield from super()._response(outputs, counts)
        response.timings = self._timings(counts)
        if self._request.verbose:
            response.verbose = self._verbose(counts)
        return response

    def _timings(self, counts: TokenCounts) -> LlamaTimings:
        return timings_of(
            self._stats, counts.prompt, counts.cached, counts.generated, self._clock()
        )

    def _verbose(self, counts: TokenCounts) -> Verbose:
        return Verbose(
            prompt=self._prompt.text,
            tokens_evaluated=counts.prompt,
            tokens_cached=counts.cached,
            tokens_predicted=counts.generated,
        )
