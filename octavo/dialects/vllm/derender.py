"""The derender routes: answers made of the tokens that another server has generated.

Nothing is kept between the chunks of a stream. The caller sends all tokens so far with each, and
they are read again, so that a parser is in the state in which it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from octavo.api.reading import Reading
from octavo.dialects.common.chat_deltas import DeltaForms
from octavo.dialects.common.logprobs import TokenTexts, completion_logprobs, most_beside
from octavo.dialects.common.parameters import chat_request
from octavo.dialects.common.schema.chat import (
    ChatChoice,
    ChatChunk,
    ChatLogprobs,
    ChatRequest,
    ChunkChoice,
    Delta,
)
from octavo.dialects.common.schema.completion import (
    CompletionChoice,
    CompletionChunk,
    CompletionChunkChoice,
    CompletionRequest,
)
from octavo.dialects.common.schema.sampling import CommonRequest
from octavo.dialects.common.tools import tool_use
from octavo.dialects.common.writer import no_writer, read_deltas, usage_of
from octavo.dialects.vllm.derender_schema import (
    DerenderChatRequest,
    DerenderCompletionRequest,
    DerenderedChat,
    DerenderedChatChunk,
    DerenderedCompletion,
    DerenderedCompletionChunk,
    DerenderRequest,
    GivenChoice,
    GivenResponse,
    StreamState,
)
from octavo.dialects.vllm.given_tokens import GivenAnswer, Way, check_given, check_ids
from octavo.serving.answers.tool_use import NO_TOOLS
from octavo.serving.exchange import Exchange
from octavo.serving.generate import admitted
from octavo.serving.large_bodies import read
from octavo.serving.operation import GenerationRequest, TokenCounts
from octavo.serving.preparation import prepare
from octavo.serving.translation import TranslationContext
from octavo.transport.errors import ApiError, invalid

ASSISTANT = "assistant"
MOST_RESPONSES = 2048  # as many as a request to complete has prompts


def translate_chat(context: TranslationContext, request: DerenderChatRequest) -> GenerationRequest:
    """Return the request that the tokens answer, of which the prompt and the reading count."""
    given = _one(request, request.generate_response, "generate_response")
    _check(context, request, [given], "generate_response")
    before = request.prompt_token_ids or given.prompt_token_ids or []
    check_ids(context.facts, before, "prompt_token_ids")
    asked = request.chat_request
    if asked is None and context.formats.has_parts:
        raise invalid(
            "chat_request is missing: without the request that was answered, reasoning and calls "
            "would stay in the text",
            "chat_request",
        )
    made = _nothing() if asked is None else chat_request(context, asked)
    made.sampling, made.shape, made.answer_job, made.max_tokens = {}, None, None, None
    if request.stream and not before and made.reading is not None:
        raise invalid(
            "prompt_token_ids are missing: their end says whether the answer begins inside of "
            "reasoning, and the conversation is not rendered for each chunk",
            "prompt_token_ids",
        )
    if before or made.reading is None:
        made.prompts = [before or [0]]
    return made


def translate_completion(
    context: TranslationContext, request: DerenderCompletionRequest
) -> GenerationRequest:
    """Check the tokens; nothing is made of the request that they answer."""
    if request.stream:
        given = [_one(request, None, "")]
    elif not request.generate_responses:
        raise invalid("generate_responses is missing, or empty", "generate_responses")
    else:
        given = request.generate_responses
        if len(given) > MOST_RESPONSES:
            raise invalid(
                f"the generate_responses count is {len(given)}; the most is {MOST_RESPONSES}",
                "generate_responses",
            )
        for name in ("prompt_tokens", "prompt_token_ids"):
            values = getattr(request, name)
            if values is not None and (not isinstance(values, list) or len(values) != len(given)):
                raise invalid(f"{name} needs an entry for each of generate_responses", name)
    _check(context, request, given, "generate_responses")
    for index, one in enumerate(given):
        check_ids(context.facts, _before(request, one, index), "prompt_token_ids")
    return _nothing()


def _nothing() -> GenerationRequest:
    """Return a request without a prompt, to which nothing is generated."""
    return GenerationRequest(prompts=[[0]], sampling={}, writer=no_writer, named=_same)


def _same(error: ApiError, index: int) -> ApiError:
    return error


def _one(request: DerenderRequest, whole: GivenResponse | None, name: str) -> GivenResponse:
    """Return the whole response, or the chunk of a stream; raise ApiError for one that lacks."""
    given, name = (request.generate_chunk, "generate_chunk") if request.stream else (whole, name)
    if given is None:
        raise invalid(f"{name} is missing", name)
    if request.stream and len(given.choices) > 1:
        raise invalid(
            f"{name}.choices: a chunk has the tokens of one answer, whose state it has", name
        )
    return given


def _check(
    context: TranslationContext,
    request: DerenderRequest,
    given: Sequence[GivenResponse],
    where: str,
) -> None:
    """Raise ApiError for tokens that cannot be read."""
    for one in given:
        check_given(context.facts, one, where)
        if not request.stream and not all(choice.token_ids for choice in one.choices):
            raise invalid(f"{where}: each choice needs token_ids", where)
    if request.stream_state is not None:
        earlier = request.stream_state.output_token_ids
        check_ids(context.facts, earlier, "stream_state.output_token_ids")


async def derender_chat(exchange: Exchange) -> None:
    """Handle POST /v1/chat/completions/derender: respond with answers, or with a chunk."""
    async with admitted(exchange):
        request, asked, made = await read(exchange, DerenderChatRequest, translate_chat)
        given = _one(request, request.generate_response, "generate_response")
        before = request.prompt_token_ids or given.prompt_token_ids or []
        reading: Reading | None = None
        if asked.reading is not None:
            if not before:
                asked.prepared = made
                prepared = await prepare(exchange.server, asked, exchange.owner)
                before = list(prepared.prompts[0].ids)
            reading = asked.reading(exchange.server.llm.model.end_of(before))
        way = Way(request.chat_request, before, reading, asked.hides_tokens)
        if request.stream:
            await exchange.respond_json(await _chat_chunk(exchange, request, given, way))
        else:
            await exchange.respond_json(await _whole_chat(exchange, request, given, way))


async def derender_completion(exchange: Exchange) -> None:
    """Handle POST /v1/completions/derender: respond with continuations, or with a chunk."""
    async with admitted(exchange):
        request, _, _ = await read(exchange, DerenderCompletionRequest, translate_completion)
        if request.stream:
            await exchange.respond_json(await _completion_chunk(exchange, request))
        else:
            await exchange.respond_json(await _whole_completion(exchange, request))


async def _whole_chat(
    exchange: Exchange, request: DerenderChatRequest, given: GivenResponse, way: Way
) -> DerenderedChat:
    """Return the answers to a conversation."""
    server, asked = exchange.server, request.chat_request
    forms, counts = _forms(request, given), TokenCounts(request.prompt_tokens or 0)
    choices: list[ChatChoice] = []
    for one in given.choices:
        answer = GivenAnswer(server, way, one)
        tokens = one.token_ids or []
        await answer.push(tokens, is_last=True)
        made = answer.take()
        counts.generated += len(tokens)
        counts.reasoning += made.num_reasoning_tokens
        message = forms.message(one.index, made.deltas, ASSISTANT)
        choice = ChatChoice(
            index=one.index,
            message=message,
            logprobs=await _chat_logprobs(exchange, answer, asked, ()),
            finish_reason=made.finish_reason and forms.finish_reason(one.index, made.finish_reason),
            stop_reason=made.stop_reason,
        )
        if asked is not None and asked.return_token_ids and not way.hides_tokens:
            choice.token_ids = tokens
        choices.append(choice)
    response = DerenderedChat(
        id=given.request_id,
        created=exchange.created,
        model=exchange.model_name,
        choices=choices,
        usage=usage_of(counts),
        system_fingerprint=server.fingerprint,
        prompt_logprobs=given.prompt_logprobs,
        kv_transfer_params=given.kv_transfer_params,
        metrics=given.metrics or UNSET,
    )
    if asked is not None and asked.return_token_ids:
        response.prompt_token_ids = given.prompt_token_ids
    return response


async def _chat_chunk(
    exchange: Exchange, request: DerenderChatRequest, given: GivenResponse, way: Way
) -> DerenderedChatChunk:
    """Return a chunk of the answer to a conversation, and the state for the next."""
    server, asked = exchange.server, request.chat_request
    forms, state = _forms(request, given), request.stream_state or StreamState()
    earlier, choices = state.output_token_ids, list[ChunkChoice]()
    for one in given.choices:
        answer = GivenAnswer(server, way, one)
        await answer.push(earlier)
        for _ in forms.parts(one.index, answer.take().deltas):
            pass  # the forms know which answers have begun a call
        await answer.push(one.token_ids or [], is_last=True)
        made = answer.take()
        parts = [*forms.parts(one.index, made.deltas)] or [Delta()]
        if not state.role_sent:
            parts[0].role = ASSISTANT
        choices += [ChunkChoice(index=one.index, delta=part) for part in parts]
        choices[0].logprobs = await _chat_logprobs(exchange, answer, asked, earlier)
        if asked is not None and asked.return_token_ids and not way.hides_tokens:
            choices[0].token_ids = one.token_ids or []
        if made.finish_reason is not None:
            reason = forms.finish_reason(one.index, made.finish_reason)
            choices[-1].finish_reason, choices[-1].stop_reason = reason, made.stop_reason
    chunk = ChatChunk(
        id=given.request_id, created=exchange.created, model=exchange.model_name, choices=choices
    )
    if given.usage is not None:
        chunk.usage = usage_of(_counted(request.prompt_tokens, given))
    if asked is not None and asked.return_token_ids and given.prompt_token_ids is not None:
        chunk.prompt_token_ids = given.prompt_token_ids
    after = StreamState(
        output_token_ids=earlier + _new(given), role_sent=state.role_sent or bool(choices)
    )
    return DerenderedChatChunk(chunk=chunk, stream_state=after)


async def _whole_completion(
    exchange: Exchange, request: DerenderCompletionRequest
) -> DerenderedCompletion:
    """Return the continuations of all prompts."""
    server, asked = exchange.server, request.completion_request
    given = request.generate_responses or []
    prompt_tokens = request.prompt_tokens if isinstance(request.prompt_tokens, list) else []
    counts, choices = TokenCounts(sum(prompt_tokens)), list[CompletionChoice]()
    for number, response in enumerate(given):
        way = Way(asked, _before(request, response, number))
        for one in response.choices:
            answer = GivenAnswer(server, way, one)
            tokens = one.token_ids or []
            await answer.push(tokens, is_last=True)
            made = answer.take()
            counts.generated += len(tokens)
            text, _ = read_deltas(made.deltas)
            choice = CompletionChoice(
                index=len(choices),
                text=text,
                finish_reason=made.finish_reason,
                stop_reason=made.stop_reason,
                prompt_logprobs=response.prompt_logprobs,
            )
            choice.logprobs, _ = _completion_logprobs(exchange, answer, one, asked, (), 0)
            if asked is not None and asked.return_token_ids:
                choice.token_ids = tokens
                choice.prompt_token_ids = response.prompt_token_ids
            choices.append(choice)
    return DerenderedCompletion(
        id=given[0].request_id,
        created=exchange.created,
        model=exchange.model_name,
        choices=choices,
        usage=usage_of(counts),
        system_fingerprint=server.fingerprint,
        kv_transfer_params=given[0].kv_transfer_params,
        metrics=given[0].metrics or UNSET,
    )


async def _completion_chunk(
    exchange: Exchange, request: DerenderCompletionRequest
) -> DerenderedCompletionChunk:
    """Return a chunk of a continuation, and the state for the next."""
    server, asked = exchange.server, request.completion_request
    given, state = _one(request, None, ""), request.stream_state or StreamState()
    earlier, choices = state.output_token_ids, list[CompletionChunkChoice]()
    offset = state.logprob_text_offset
    for one in given.choices:
        answer = GivenAnswer(server, Way(asked, _before(request, given, 0)), one)
        await answer.push(earlier)
        answer.take()
        await answer.push(one.token_ids or [], is_last=True)
        made = answer.take()
        text, _ = read_deltas(made.deltas)
        choice = CompletionChunkChoice(
            index=one.index,
            text=text,
            finish_reason=made.finish_reason,
            stop_reason=made.stop_reason,
        )
        logprobs = _completion_logprobs(exchange, answer, one, asked, earlier, offset)
        choice.logprobs, offset = logprobs
        if asked is not None and asked.return_token_ids:
            choice.token_ids = one.token_ids or []
        choices.append(choice)
    chunk = CompletionChunk(
        id=given.request_id, created=exchange.created, model=exchange.model_name, choices=choices
    )
    if given.usage is not None:
        counted = request.prompt_tokens if isinstance(request.prompt_tokens, int) else None
        chunk.usage = usage_of(_counted(counted, given))
    after = StreamState(output_token_ids=earlier + _new(given), logprob_text_offset=offset)
    return DerenderedCompletionChunk(chunk=chunk, stream_state=after)


def _forms(request: DerenderChatRequest, given: GivenResponse) -> DeltaForms:
    """Return the forms of the answers' parts; calls have the same ids in each chunk."""
    asked = request.chat_request
    if asked is None:
        return DeltaForms(given.request_id, NO_TOOLS, has_reasoning=True)
    has_reasoning = asked.include_reasoning is not False
    return DeltaForms(given.request_id, tool_use(asked), has_reasoning=has_reasoning)


def _texts(exchange: Exchange, asked: CommonRequest | None) -> TokenTexts:
    as_ids = asked.return_tokens_as_token_ids if asked is not None else None
    if as_ids is None:
        as_ids = exchange.server.config.return_tokens_as_token_ids
    return TokenTexts(exchange.server.llm.model.tokenizer, as_ids)


async def _chat_logprobs(
    exchange: Exchange, answer: GivenAnswer, asked: ChatRequest | None, before: Sequence[int]
) -> ChatLogprobs | None:
    """Return the given log-probabilities in the form of chats, as many as were asked for."""
    most = asked.top_logprobs if asked is not None else None
    texts = _texts(exchange, asked)
    named = None if asked is None else asked.logprob_token_ids
    return await answer.chat_logprobs(before, texts, None if most == -1 else most, named or ())


def _completion_logprobs(
    exchange: Exchange,
    answer: GivenAnswer,
    one: GivenChoice,
    asked: CompletionRequest | None,
    before: Sequence[int],
    offset: int,
) -> tuple[Any, int]:
    """Return the given log-probabilities in the form of completions, and the next offset."""
    if one.logprobs is None:
        return None, offset
    most = -1
    if asked is not None and asked.logprobs is not None:
        most = most_beside(asked.logprobs, asked.logprob_token_ids)
    tokens = answer.text_tokens(before)
    pieces = completion_logprobs(tokens, most, _texts(exchange, asked), offset)
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            made: tuple[Any, int] = end.value
            return made


def _before(request: DerenderCompletionRequest, given: GivenResponse, index: int) -> Sequence[int]:
    """Return the tokens before those of one of the given responses."""
    ids: Any = request.prompt_token_ids
    if ids and not request.stream:
        ids = ids[index]
    return ids or given.prompt_token_ids or ()


def _new(given: GivenResponse) -> list[int]:
    """Return the tokens of a chunk."""
    return [token for one in given.choices for token in one.token_ids or ()]


def _counted(prompt_tokens: int | None, given: GivenResponse) -> TokenCounts:
    """Return the counts of the server that has generated the tokens."""
    assert given.usage is not None
    if prompt_tokens is None:
        prompt_tokens = given.usage.prompt_tokens
    return TokenCounts(prompt_tokens, given.usage.completion_tokens)
