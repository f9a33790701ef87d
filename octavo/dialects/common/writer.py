"""The parts that the writers of OpenAI's answers share: chunk templates, the usage, the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from msgspec import UnsetType

from octavo.dialects.common.dialect import DONE, error_body, frame
from octavo.dialects.common.logprobs import TokenTexts
from octavo.dialects.common.schema.sampling import CommonRequest
from octavo.dialects.common.schema.usage import CompletionTokensDetails, PromptTokensDetails, Usage
from octavo.formats.deltas import Delta, FinishDelta, TextDelta
from octavo.observe.request_timing import RequestTiming
from octavo.serving.exchange import Exchange
from octavo.serving.operation import GenerationRequest, PreparedRequest, TokenCounts, Writer
from octavo.transport.errors import ApiError
from octavo.transport.exchange import encode

ANSWERER = "assistant"  # the role of who answers
TEXT = "\0"  # the placeholder for a template's text; nothing after a choice contains it


class Chunk(Protocol):
    """A payload of a stream, with the parts that all of them have."""

    usage: Usage | UnsetType
    metrics: RequestTiming | UnsetType
    explain: dict[str, Any] | UnsetType
    warnings: list[str] | UnsetType


class WholeResponse(Protocol):
    """A response with all answers, with the parts that all of them may have."""

    metrics: RequestTiming | UnsetType
    explain: dict[str, Any] | UnsetType
    warnings: list[str] | UnsetType


class Template:
    """The frame of a chunk in which only the text changes from one to the next."""

    def __init__(self, chunk: Chunk, num_texts: int = 1) -> None:
        # An encoded text joins them: `encode(text).join(sides)` is the frame with it.
        self.sides = frame(encode(chunk)).rsplit(encode(TEXT), num_texts)


class OpenAIWriter:
    """The part of a writer that both routes share."""

    def __init__(
        self,
        exchange: Exchange,
        request: CommonRequest,
        prepared: PreparedRequest,
        id_prefix: str,
    ) -> None:
        server = exchange.server
        self._id = f"{id_prefix}{exchange.request_id}"
        self._created = exchange.created
        self._model = server.model_name
        self._fingerprint = server.fingerprint
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

    def _warned(self, chunk: Chunk) -> Iterator[bytes]:
        """Yield a chunk with the warnings, if there are any."""
        if self._warnings:
            chunk.warnings = self._warnings
            yield frame(encode(chunk))

    def _body(
        self, response: WholeResponse, counts: TokenCounts, explanation: dict[str, Any] | None
    ) -> bytes:
        """Return the body of a whole response, with what every kind of response may have."""
        if counts.timing is not None:
            response.metrics = counts.timing
        if explanation is not None:
            response.explain = explanation
        if self._warnings:
            response.warnings = self._warnings
        return encode(response)

    def failure(self, error: ApiError) -> bytes:
        """Return the frames of an error that ends the stream."""
        return frame(error_body(error)) + DONE

    def _closing(
        self, chunk: Chunk, counts: TokenCounts, explanation: dict[str, Any] | None
    ) -> Iterator[bytes]:
        """Yield a last chunk without choices, if there is anything to put into it, and the end."""
        if self._sends_usage:
            chunk.usage = usage_of(counts)
            if counts.timing is not None:
                chunk.metrics = counts.timing
        if explanation is not None:
            chunk.explain = explanation
        if self._sends_usage or explanation is not None:
            yield frame(encode(chunk))
        yield DONE


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
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=counts.reasoning),
    )


def no_writer(*given: Any) -> Writer:
    """Stand for the writer of a request to which nothing is generated."""
    raise AssertionError("nothing is generated")
