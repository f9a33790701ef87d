"""/inference/v1/generate: token ids in, token ids out, with their text if that is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from octavo.api.outputs import CompletionOutput, Logprobs, RequestOutput
from octavo.dialects.common.chat_deltas import DeltaForms
from octavo.dialects.common.dialect import frame
from octavo.dialects.common.logprobs import (
    EncodedLists,
    Pieces,
    chat_logprobs,
    finite,
    in_pieces,
    most_in_chats,
    prompt_logprobs,
)
from octavo.dialects.common.parameters import generation_request
from octavo.dialects.common.parse_context import FIELD, use_of, with_place
from octavo.dialects.common.schema.completion import CompletionRequest
from octavo.dialects.common.schema.rendered import TokenSampling
from octavo.dialects.common.writer import ANSWERER, OpenAIWriter, hide_tokens, usage_of
from octavo.dialects.vllm.schema import (
    IdLogprob,
    IdLogprobs,
    IdPosition,
    TokensChoice,
    TokensChunk,
    TokensRequest,
    TokensResponse,
)
from octavo.serving.answers.tool_use import NO_TOOLS
from octavo.serving.exchange import Exchange
from octavo.serving.operation import TURN, GenerationRequest, PreparedRequest, TokenCounts
from octavo.serving.translation import TranslationContext
from octavo.transport.errors import ApiError, invalid
from octavo.transport.exchange import encode

OUTER = "sampling_params"
# Fields that `generation_request` is given by name, or that have no effect here.
_APART = ("max_tokens", "logprobs", "detokenize", "extra_args", "prediction")
_SAMPLING = tuple(name for name in TokenSampling.__struct_fields__ if name not in _APART)


def translate(context: TranslationContext, request: TokensRequest) -> GenerationRequest:
    """Return the neutral form of a request to continue token ids."""
    sampling, mode = request.sampling_params, request.output_mode or "tokens"
    if sampling.detokenize is False:
        if sampling.stop:
            raise _needs_text("stop strings are found in the text", "stop")
        if mode != "tokens":
            raise _needs_text(f"output_mode {mode!r} is made of the text", "detokenize")
    if context.tokens_only:
        _check_without_text(mode, sampling)
    if mode == "derender":
        _check_derender(context, request)
    common = CompletionRequest(
        prompt=[],
        **{name: getattr(sampling, name) for name in _SAMPLING},
        vllm_xargs=sampling.extra_args,
        stream=request.stream,
        stream_options=request.stream_options,
        cache_salt=request.cache_salt,
        priority=request.priority,
        return_token_ids=request.return_token_ids,
    )
    write = partial(TokensWriter, mode)
    made = generation_request(
        common, [request.token_ids], sampling.max_tokens, sampling.logprobs, write
    )
    made.prediction = sampling.prediction or []
    made.named = partial(_named, made.named)
    _bind(context, request, made)
    if mode != "derender":
        made.reading = None
    return made


def _check_without_text(mode: str, sampling: TokenSampling) -> None:
    """Raise ApiError for what a server of token ids alone would need a text for."""
    why = "which a server with --tokens-only leaves out"
    if mode != "tokens":
        raise invalid(
            f"output_mode {mode!r} requires a tokenizer, {why}; make the text of the tokens "
            "elsewhere, such as at the derender routes of another server",
            "output_mode",
        )
    if sampling.stop:
        name = f"{OUTER}.stop"
        raise invalid(
            f"{name}: stop strings are found in the text, {why}; use stop_token_ids", name
        )


def _check_derender(context: TranslationContext, request: TokensRequest) -> None:
    """Raise ApiError for an answer whose parts cannot be separated, or not in a stream."""
    if request.stream:
        raise invalid(
            "stream: a message is made of the whole answer; leave stream out, or send the chunks "
            "of output_mode 'tokens' to /v1/chat/completions/derender",
            "stream",
        )
    if request.parse_context is None and context.formats.has_parts:
        raise invalid(
            f"{FIELD} is missing: without what the render says of the conversation, reasoning and "
            "calls would stay in the text",
            FIELD,
        )


def _bind(context: TranslationContext, request: TokensRequest, made: GenerationRequest) -> None:
    """Set what the answer consists of, and how it is read, as the conversation would have it."""
    given, formats = request.parse_context, context.formats
    use = NO_TOOLS if given is None else use_of(given)
    try:
        formats.check(use)
    except ApiError as error:
        raise with_place(error) from None
    formats.bind(made, use, context.facts.vocabulary)
    if request.reasoning_ended and not use.callable:
        made.answer_job = None  # nothing but text in the shape
    hides = given is not None and given.include_reasoning is False
    if request.output_mode == "derender" and hides and formats.separates_reasoning:
        hide_tokens(made)


def _needs_text(what: str, name: str) -> ApiError:
    """Return the error for a field that needs the text, which is not to be made."""
    param = f"{OUTER}.{name}"
    return invalid(f"{param}: {what}, which detokenize=false leaves out", param)


def _named(named: Any, error: ApiError, index: int) -> ApiError:
    """Return an error of the checks with the name of its field in this request."""
    error = named(error, index)
    error = error.renamed({"vllm_xargs": "extra_args", "prompt": "token_ids"})
    param = error.param
    if param is not None and param.startswith(NO_TOOLS.field):
        return with_place(error)
    if param is not None and param.partition(".")[0] in TokenSampling.__struct_fields__:
        error.param = f"{OUTER}.{param}"
    return error


class TokensWriter(OpenAIWriter):
    """Answers in token ids, written as chunks or as a whole."""

    chunk = TokensChunk

    def __init__(
        self,
        mode: str,
        request: CompletionRequest,
        exchange: Exchange,
        prepared: PreparedRequest,
    ) -> None:
        super().__init__(exchange, request, prepared, "")
        self._model, self._created = self._named["model"], self._named["created"]
        self._named = {"request_id": exchange.request_id, "output_mode": mode}
        self._mode = mode
        self._has_texts = not exchange.server.config.tokens_only  # of the prompt's tokens
        asked = prepared.asked
        self._hides_tokens = asked.hides_tokens
        self._forms = DeltaForms(
            exchange.request_id, asked.tools, has_reasoning=not asked.hides_tokens
        )
        self._prompt_token_ids = None
        if request.return_token_ids:
            self._prompt_token_ids = prepared.prompts[0].token_ids
        self._most = prepared.sampling.logprobs
        if mode != "tokens":
            self._most = most_in_chats(prepared.sampling)
        self._most_of_prompt = prepared.sampling.prompt_logprobs

    def frames(
        self, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterator[bytes]:
        """Yield a chunk for each answer that has something new."""
        for one in output.outputs:
            if one.token_ids or one.finish_reason is not None:
                choice = yield from self._choice(one)
                chunk = self._chunk(choice, counts=counts)
                if self._prompt_token_ids is not None:
                    chunk.prompt_token_ids, self._prompt_token_ids = self._prompt_token_ids, None
                yield frame(encode(chunk))

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
            **self._named,
            choices=choices,
            usage=usage_of(counts),
            model=self._model,
            created=self._created,
            prompt_token_ids=self._prompt_token_ids,
        )
        if output.prompt_logprobs is not None:
            written: Any = yield from prompt_logprobs(
                output.prompt_logprobs, self._most_of_prompt or 0, has_texts=self._has_texts
            )
            response.prompt_logprobs = written
        if counts.timing is not None:
            response.metrics = counts.timing
        yield encode(response)

    def _choice(self, one: CompletionOutput) -> Pieces[TokensChoice]:
        choice = TokensChoice(
            index=one.index,
            token_ids=one.token_ids,
            finish_reason=one.finish_reason,
            stop_reason=one.stop_reason,
        )
        if self._mode == "text":
            choice.text = one.text
        elif self._mode == "derender":
            reason = one.finish_reason
            choice.message = self._forms.message(one.index, one.deltas, ANSWERER)
            choice.finish_reason = reason and self._forms.finish_reason(one.index, reason)
            if self._hides_tokens:
                choice.token_ids = None
        if self._most is not None and one.logprobs:
            if self._mode != "tokens":
                written: Any = yield from chat_logprobs(one.logprobs, self._most, self._texts)
            else:
                written = yield from id_logprobs(one.logprobs, self._most)
            choice.logprobs = written
        return choice


def id_logprobs(positions: Logprobs, most: int) -> Pieces[msgspec.Raw]:
    """Return the log-probabilities of generated tokens by their ids, made in pieces.

    Among the likeliest tokens, the generated one comes first.
    """
    lists = EncodedLists()
    for piece in in_pieces(positions, most):
        content = []
        for position in piece:
            listed = [
                IdLogprob(token_id=token, logprob=finite(each.logprob), rank=each.rank)
                for token, each in islice(position.items(), None if most == -1 else most + 1)
            ]
            own = listed[0]
            content.append(
                IdPosition(
                    token_id=own.token_id, logprob=own.logprob, rank=own.rank, top_logprobs=listed
                )
            )
        lists.add(IdLogprobs(content=content))
        yield TURN
    return lists.encoded(IdLogprobs(content=[]))
