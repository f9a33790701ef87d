"""/v1/fim/completions: completions with a suffix, answered in the form of chats."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from octavo.api.outputs import RequestOutput
from octavo.dialects.common.completions import completion_request
from octavo.dialects.common.dialect import COMPLETION_ID, frame
from octavo.dialects.common.logprobs import Pieces
from octavo.dialects.common.schema.chat import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatResponse,
    ChunkChoice,
    Delta,
)
from octavo.dialects.common.schema.completion import CompletionRequest
from octavo.dialects.common.schema.sampling import StreamOptions
from octavo.dialects.common.writer import ANSWERER, OpenAIWriter, read_deltas, usage_of
from octavo.dialects.mistral.schema import FimRequest
from octavo.formats.deltas import FinishDelta
from octavo.serving.exchange import Exchange
from octavo.serving.operation import GenerationRequest, PreparedRequest, TokenCounts
from octavo.serving.translation import TranslationContext
from octavo.transport.exchange import encode


def translate(context: TranslationContext, request: FimRequest) -> GenerationRequest:
    """Return the neutral form of a request for what stands between two texts."""
    same = CompletionRequest(
        model=request.model,
        prompt=request.prompt,
        suffix=request.suffix,
        max_tokens=request.max_tokens,
        min_tokens=request.min_tokens or 0,
        temperature=request.temperature,
        top_p=request.top_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        seed=request.random_seed,
        stop=request.stop,
        stream=request.stream,
        stream_options=StreamOptions(include_usage=True) if request.stream else None,
        cache_salt=request.cache_salt,
        priority=request.priority,
        deadline_ms=request.deadline_ms,
    )
    made = completion_request(context, same)
    made.default_max_tokens = None
    made.writer = partial(FimWriter, same)
    before = made.named
    made.named = lambda error, index: before(error, index).renamed({"seed": "random_seed"})
    return made


class FimWriter(OpenAIWriter):
    """A text between two others, written as an assistant's message."""

    chunk = ChatChunk

    def __init__(
        self, request: CompletionRequest, exchange: Exchange, prepared: PreparedRequest
    ) -> None:
        super().__init__(exchange, request, prepared, COMPLETION_ID)

    def opening(self, counts: TokenCounts) -> Iterator[bytes]:
        """Yield the warnings, and the role."""
        yield from super().opening(counts)
        yield self._frame(Delta(role=ANSWERER, content=""), None, counts)

    def frames(
        self, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterator[bytes]:
        """Yield a chunk for new text."""
        for one in output.outputs:
            text, finish = read_deltas(one.deltas)
            if text or finish is not None:
                yield self._frame(Delta(content=text), finish, counts)

    def _response(self, outputs: list[RequestOutput], counts: TokenCounts) -> Pieces[ChatResponse]:
        yield from ()  # nothing here is long
        (output,) = outputs
        (one,) = output.outputs
        text, finish = read_deltas(one.deltas)
        choice = ChatChoice(index=0, message=AnswerMessage(role=ANSWERER, content=text))
        if finish is not None:
            choice.finish_reason, choice.stop_reason = finish.reason, finish.stop
        return ChatResponse(**self._named, choices=[choice], usage=usage_of(counts))

    def _frame(self, delta: Delta, finish: FinishDelta | None, counts: TokenCounts) -> bytes:
        """Return the event with what is new of the answer."""
        choice = ChunkChoice(index=0, delta=delta)
        if finish is not None:
            choice.finish_reason, choice.stop_reason = finish.reason, finish.stop
        return frame(encode(self._chunk(choice, counts=counts)))
