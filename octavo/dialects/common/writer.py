"""The parts that the writers of OpenAI's answers share: chunk templates, the usage, the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from msgspec import Struct

from octavo.api.outputs import RequestOutput
from octavo.dialects.common.dialect import DONE, error_body, frame
from octavo.dialects.common.logprobs import Pieces, TokenTexts
from octavo.dialects.common.schema.sampling import CommonRequest
from octavo.dialects.common.schema.usage import CompletionTokensDetails, PromptTokensDetails, Usage
from octavo.formats.deltas import Delta, FinishDelta, TextDelta
from octavo.serving.answers.writer import BaseWriter
from octavo.serving.exchange import Exchange
from octavo.serving.operation import GenerationRequest, PreparedRequest, TokenCounts, Writer
from octavo.transport.errors import ApiError
from octavo.transport.exchange import encode

ANSWERER = "assistant"  # the role of who answers
TEXT = "\0"  # the placeholder for a template's text; nothing after a choice contains it


class Template:
    """The frame of a chunk in which only the text changes from one to the next."""

    def __init__(self, chunk: Struct, num_texts: int = 1) -> None:
        # An encoded text joins them: `encode(text).join(sides)` is the frame with it.
        self.sides = frame(encode(chunk)).rsplit(encode(TEXT), num_texts)


class OpenAIWriter(BaseWriter):
    """The part of a writer that all routes share; each has its chunks and its response."""

    chunk: ClassVar[type[Any]]  # the payload of a stream

    def __init__(
        self,
        exchange: Exchange,
        request: CommonRequest,
        prepared: PreparedRequest,
        id_prefix: str,
    ) -> None:
        server = exchange.server
        # The fields that each chunk and each response begins with.
        self._named: dict[str, Any] = {
            "id": f"{id_prefix}{exchange.request_id}",
            "created": exchange.created,
            "model": exchange.model_name,
            "system_fingerprint": server.fingerprint,
        }
        names_ids = request.return_tokens_as_token_ids
        if names_ids is None:
            names_ids = server.config.return_tokens_as_token_ids
        self._texts = TokenTexts(server.llm.model.tokenizer, names_ids)
        options, always = request.stream_options, server.config.enable_force_include_usage
        self._sends_usage = always or bool(options and options.include_usage)
        asks_always = bool(options and options.continuous_usage_stats)
        self._sends_usage_always = always or (self._sends_usage and asks_always)
        self._templates: dict[int, Template] = {}  # by choice
        self._warnings = prepared.warnings

    def opening(self, counts: TokenCounts) -> Iterable[bytes]:
        """Return the warnings, if there are any."""
        return self._warned(self._chunk())

    def _warned(self, chunk: Any) -> Iterator[bytes]:
        """Yield a chunk with the warnings, if there are any."""
        if self._warnings:
            chunk.warnings = self._warnings
            yield frame(encode(chunk))

    def closing(self, counts: TokenCounts, explanation: dict[str, Any] | None) -> Iterable[bytes]:
        """Yield a last chunk without choices, if there is anything to put into it, and the end."""
        chunk = self._chunk()
        if self._sends_usage:
            chunk.usage = usage_of(counts)
            if counts.timing is not None:
                chunk.metrics = counts.timing
        if explanation is not None:
            chunk.explain = explanation
        if self._sends_usage or explanation is not None:
            yield frame(encode(chunk))
        yield DONE

    def failure(self, error: ApiError) -> bytes:
        """Return the frames of an error that ends the stream."""
        return frame(error_body(error)) + DONE

    def whole(
        self,
        outputs: list[RequestOutput],
        counts: TokenCounts,
        explanation: dict[str, Any] | None,
    ) -> Iterable[bytes]:
        """Yield the response, with what every kind of response may have."""
        response = yield from self._response(outputs, counts)
        if counts.timing is not None:
            response.metrics = counts.timing
        if explanation is not None:
            response.explain = explanation
        if self._warnings:
            response.warnings = self._warnings
        yield encode(response)

    def _chunk(self, *choices: Any, counts: TokenCounts | None = None) -> Any:
        """Return a chunk with these choices, and the usage if counts are given and always sent."""
        chunk = self.chunk(**self._named, choices=list(choices))
        if counts is not None and self._sends_usage_always:
            chunk.usage = usage_of(counts)
        return chunk

    def _response(self, outputs: list[RequestOutput], counts: TokenCounts) -> Pieces[Any]:
        """Return the response with all answers, made in pieces."""
        raise NotImplementedError


def hide_tokens(asked: GenerationRequest) -> None:
    """Leave out what each token of an answer is, since its reasoning is left out."""
    asked.hides_tokens = True
    if asked.sampling.pop("logprobs", None) is not None or "logprob_token_ids" in asked.sampling:
        asked.sampling.pop("logprob_token_ids", None)
        asked.warnings.append(
            "the answer has no logprobs, which would show the reasoning that "
            "include_reasoning=false leaves out"
        )


def read_deltas(deltas: Sequence[Delta]) -> tuple[str, FinishDelta | None]:
    """Return the text and the end among these; raise TypeError for others, which have no form."""
    text, finish = "", None
    for delta in deltas:
        if isinstance(delta, TextDelta):
            text += delta.text
        elif isinstance(delta, FinishDelta):
            finish = delta
        else:
            raise TypeError(f"this dialect has no form for {type(delta).__name__}")
    return text, finish


def usage_of(counts: TokenCounts) -> Usage:
    """Return the token counts in the form of this dialect."""
    return Usage(
        prompt_tokens=counts.prompt,
        completion_tokens=counts.generated,
        total_tokens=counts.prompt + counts.generated,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=counts.cached),
        completion_tokens_details=CompletionTokensDetails(
            reasoning_tokens=counts.reasoning,
            accepted_prediction_tokens=counts.accepted_prediction,
            rejected_prediction_tokens=counts.rejected_prediction,
        ),
    )


def no_writer(*given: Any) -> Writer:
    """Stand for the writer of a request to which nothing is generated."""
    raise AssertionError("nothing is generated")
