"""The calls that use the model: the translation of requests, and the messages of answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from octavo.api.outputs import CompletionOutput, Logprob, RequestOutput
from octavo.api.pooling.tasks import hidden_state
from octavo.api.pooling.vectors import of_length_one
from octavo.core.pooling import Pooling
from octavo.dialects.common.logprobs import finite
from octavo.dialects.common.parameters import generation_request
from octavo.dialects.common.writer import read_deltas
from octavo.dialects.grpc.dialect import error_body, frame, named
from octavo.dialects.grpc.messages import messages
from octavo.dialects.grpc.schema import RpcEmbedRequest, RpcGenerateRequest, RpcInput
from octavo.serving.answers.writer import BaseWriter
from octavo.serving.bounds.turns import Turns
from octavo.serving.exchange import Exchange
from octavo.serving.operation import TURN, GenerationRequest, PreparedRequest, TokenCounts
from octavo.serving.translation import TranslationContext
from octavo.transport.errors import ApiError
from octavo.workers.jobs import PromptJob


def translate(context: TranslationContext, request: RpcGenerateRequest) -> GenerationRequest:
    """Return the neutral form of a request to continue a text or token ids."""
    fields = request.sampling_params
    fields.stream = request.is_stream
    made = generation_request(
        fields,
        [_job(request, add_special_tokens=fields.add_special_tokens)],
        fields.max_tokens,
        fields.logprobs,
        GenerateWriter,
    )
    made.named = partial(_named, request, made.named)
    return made


def translate_embed(context: TranslationContext, request: RpcEmbedRequest) -> GenerationRequest:
    """Return the neutral form of a request for a vector, which generates no token."""
    return GenerationRequest(
        prompts=[_job(request)],
        sampling={"pooling": Pooling(request.pooling), "temperature": 0.0, "detokenize": False},
        writer=partial(EmbedWriter, request),
        named=partial(_named, request, lambda error, index: error),
        max_tokens=0,
    )


def _job(request: RpcInput, *, add_special_tokens: bool = True) -> PromptJob:
    return PromptJob(
        text=request.prompt,
        packed_ids=request.packed_ids,
        add_special_tokens=add_special_tokens,
    )


def _named(request: RpcInput, inner: Any, error: ApiError, index: int) -> ApiError:
    error = inner(error, index)
    if error.param == "prompt" and request.packed_ids:
        error.param = "token_ids"
    return named(error)


class GenerateWriter(BaseWriter):
    """Answers as messages, in chunks or as a whole."""

    def __init__(self, request: Any, exchange: Exchange, prepared: PreparedRequest) -> None:
        self._id = exchange.request_id
        self._model = exchange.model_name
        self._warnings = prepared.warnings
        self._most = prepared.sampling.logprobs
        self._most_of_prompt = prepared.sampling.prompt_logprobs

    def opening(self, counts: TokenCounts) -> Iterable[bytes]:
        """Return the warnings, if there are any."""
        if not self._warnings:
            return ()
        return (_framed(self._chunk(warnings=self._warnings)),)

    def frames(
        self, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterator[bytes]:
        """Yield a chunk for each answer that has something new."""
        turns = Turns()
        for one in output.outputs:
            if one.token_ids or one.deltas:
                if turns.is_due():
                    yield TURN
                yield _framed(self._chunk(choices=[self._choice(one)]))

    def closing(self, counts: TokenCounts, explanation: dict[str, Any] | None) -> Iterable[bytes]:
        """Return the chunk with the usage."""
        return (_framed(self._chunk(usage=_usage(counts))),)

    failure = staticmethod(error_body)

    def body(self, outputs: list[RequestOutput], counts: TokenCounts) -> Iterator[bytes]:
        """Yield the response with all answers."""
        (output,) = outputs
        response = messages().GenerateResponse(
            request_id=self._id, model=self._model, usage=_usage(counts), warnings=self._warnings
        )
        for one in output.outputs:
            response.choices.append(self._choice(one))
            yield TURN
        turns = Turns()
        for position in output.prompt_logprobs or ():
            if position is not None:
                response.prompt_logprobs.append(_position(position, self._most_of_prompt or 0))
            if turns.is_due():
                yield TURN
        yield _framed(response)

    def _chunk(self, **fields: Any) -> Any:
        return messages().GenerateChunk(request_id=self._id, **fields)

    def _choice(self, one: CompletionOutput) -> Any:
        text, finish = read_deltas(one.deltas)
        choice = messages().Choice(index=one.index, text=text, token_ids=one.token_ids)
        if finish is not None:
            choice.finish_reason = finish.reason
            if isinstance(finish.stop, str):
                choice.stop = finish.stop
            elif finish.stop is not None:
                choice.stop_token_id = finish.stop
        if self._most is not None and one.logprobs:
            choice.logprobs.extend(_position(each, self._most) for each in one.logprobs)
        return choice


class EmbedWriter(BaseWriter):
    """The vector of a prompt as a message; it is not streamed."""

    def __init__(
        self, request: RpcEmbedRequest, exchange: Exchange, prepared: PreparedRequest
    ) -> None:
        self._request = request
        self._id = exchange.request_id
        self._model = exchange.model_name

    failure = staticmethod(error_body)

    def body(self, outputs: list[RequestOutput], counts: TokenCounts) -> Iterable[bytes]:
        """Return the response with the vector."""
        (output,) = outputs
        state = hidden_state(output)
        vector = of_length_one(state) if self._request.normalize else state
        response = messages().EmbedResponse(
            request_id=self._id,
            model=self._model,
            embedding=vector,
            prompt_tokens=counts.prompt,
        )
        return (_framed(response),)


def _framed(message: Any) -> bytes:
    return frame(message.SerializeToString())


def _usage(counts: TokenCounts) -> Any:
    return messages().Usage(
        prompt_tokens=counts.prompt,
        completion_tokens=counts.generated,
        cached_tokens=counts.cached,
    )


def _position(position: Mapping[int, Logprob], most: int) -> Any:
    """Return the log-probabilities at one position, of which the first is its own token's."""
    made, one = messages().Position(), messages().Logprob
    chosen, *others = position.items()
    made.chosen.CopyFrom(one(token_id=chosen[0], logprob=finite(chosen[1].logprob)))
    likeliest = sorted([chosen, *others], key=lambda pair: -pair[1].logprob)
    for token, logprob in likeliest if most == -1 else likeliest[:most]:
        made.likeliest.append(one(token_id=token, logprob=finite(logprob.logprob)))
    return made
