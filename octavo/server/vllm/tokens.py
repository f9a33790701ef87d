"""/inference/v1/generate: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from octavo.api.outputs import CompletionOutput, RequestOutput
from octavo.server.http.errors import ApiError
from octavo.server.http.exchange import Exchange, encode
from octavo.server.openai.common import OpenAIWriter, usage_of
from octavo.server.openai.dialect import frame
from octavo.server.openai.logprobs import Pieces, chat_logprobs, prompt_logprobs
from octavo.server.openai.parameters import generation_request
from octavo.server.openai.schema.completion import CompletionRequest
from octavo.server.operation import GenerationRequest, PreparedRequest, TokenCounts
from octavo.server.translation import TranslationContext
from octavo.server.vllm.schema import (
    TokenSampling,
    TokensChoice,
    TokensChunk,
    TokensRequest,
    TokensResponse,
)

OUTER = "sampling_params"
# Fields that `generation_request` is given by name, or that have no effect here.
_APART = ("max_tokens", "logprobs", "detokenize")
_SAMPLING = tuple(name for name in TokenSampling.__struct_fields__ if name not in _APART)


def translate(context: TranslationContext, request: TokensRequest) -> GenerationRequest:
    """Return the neutral form of a request to continue token ids."""
    context.check_model(request.model)
    sampling = request.sampling_params
    common = CompletionRequest(
        prompt=[],
        **{name: getattr(sampling, name) for name in _SAMPLING},
        stream=request.stream,
        stream_options=request.stream_options,
        cache_salt=request.cache_salt,
        priority=request.priority,
    )
    made = generation_request(
        common, [request.token_ids], sampling.max_tokens, sampling.logprobs, TokensWriter
    )
    made.named = partial(_named, made.named)
    return made


def _named(named: Any, error: ApiError, index: int) -> ApiError:
    """Return an error of the checks with the name of its field in this request."""
    error = named(error, index)
    param = error.param
    if param == "prompt":
        error.param = "token_ids"
    elif param is not None and param.partition(".")[0] in TokenSampling.__struct_fields__:
        error.param = f"{OUTER}.{param}"
    return error


class TokensWriter(OpenAIWriter):
    """Answers in token ids, written as chunks or as a whole."""

    def __init__(
        self, request: CompletionRequest, exchange: Exchange, prepared: PreparedRequest
    ) -> None:
        super().__init__(exchange, request, prepared, "")
        self._most = prepared.sampling.logprobs
        self._most_of_prompt = prepared.sampling.prompt_logprobs

    def opening(self, counts: TokenCounts) -> Iterable[bytes]:
        """Return the warnings; otherwise the stream begins with tokens."""
        return self._warned(TokensChunk(request_id=self._id, choices=[]))

    def frames(
        self, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterator[bytes]:
        """Yield a chunk for each answer that has something new."""
        for one in output.outputs:
            if one.token_ids or one.finish_reason is not None:
                choice = yield from self._choice(one)
                chunk = TokensChunk(request_id=self._id, choices=[choice])
                if self._sends_usage_always:
                    chunk.usage = usage_of(counts)
                yield frame(encode(chunk))

    def closing(self, counts: TokenCounts, explanation: dict[str, Any] | None) -> Iterable[bytes]:
        """Return the usage, in a chunk of its own, and the end."""
        return self._closing(TokensChunk(request_id=self._id, choices=[]), counts, explanation)

    def whole(
        self,
        outputs: list[RequestOutput],
        counts: TokenCounts,
        explanation: dict[str, Any] | None,
    ) -> Iterator[bytes]:
        """Yield the response with all answers."""
        (output,) = outputs
        choices: list[TokensChoice] = []
        for one in output.outputs:
            choice = yield from self._choice(one)
            choices.append(choice)
        response = TokensResponse(
            request_id=self._id,
            choices=choices,
            usage=usage_of(counts),
            model=self._model,
            created=self._created,
        )
        if output.prompt_logprobs is not None:
            written: Any = yield from prompt_logprobs(
                output.prompt_logprobs, self._most_of_prompt or 0
            )
            response.prompt_logprobs = written
        yield encode(response)

    def _choice(self, one: CompletionOutput) -> Pieces[TokensChoice]:
        choice = TokensChoice(
            index=one.index,
            token_ids=one.token_ids,
            finish_reason=one.finish_reason,
            stop_reason=one.stop_reason,
        )
        if self._most is not None and one.logprobs:
            written: Any = yield from chat_logprobs(one.logprobs, self._most, self._texts)
            choice.logprobs = written
        return choice
