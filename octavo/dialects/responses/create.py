"""POST /v1/responses: from the request to its answer, which is kept unless it should not be.

`count` returns the number of tokens that precede an answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import msgspec

from octavo.api.pooling.served import check_generates
from octavo.dialects.common.parameters import given_fields
from octavo.dialects.common.schema.usage import InputTokensResponse
from octavo.dialects.responses.background import follow, start
from octavo.dialects.responses.conversation import PROMPT_NAMES, conversation_job
from octavo.dialects.responses.items import as_array, continued, named
from octavo.dialects.responses.schema import InputTokensRequest, ResponsesRequest
from octavo.dialects.responses.tools import shape_of, tool_use, with_own_place
from octavo.dialects.responses.writer import QUEUED, ResponseWriter, wants_logprobs
from octavo.serving.durable.head import register
from octavo.serving.exchange import Exchange
from octavo.serving.generate import admitted, answer
from octavo.serving.large_bodies import prompt_of, read_with
from octavo.serving.operation import GenerationRequest, PreparedRequest
from octavo.serving.preparation import PLACES, refusals
from octavo.serving.schema.near_names import not_among
from octavo.serving.store.responses import Content, Entry, StoredItem
from octavo.serving.translation import TranslationContext
from octavo.transport.deadline import RequestTask
from octavo.transport.errors import ApiError, invalid
from octavo.transport.exchange import encode
from octavo.workers.jobs import PromptJob

_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty"),
    *("presence_penalty", "frequency_penalty", "seed", "stop", "stop_token_ids"),
    *("min_tokens", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens"),
    "logit_bias",
)
_NAMES = {
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "extra_args": "vllm_xargs",
    **PROMPT_NAMES,
}
_INCLUDABLE = frozenset(
    {
        "message.output_text.logprobs",
        # Reasoning comes in the clear, and the others belong to tools that do not run here.
        "reasoning.encrypted_content",
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
        "message.input_image.image_url",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
    }
)


class _Link(msgspec.Struct):
    """The part of a body that says which response it continues."""

    previous_response_id: str | None = None


_link = msgspec.json.Decoder(_Link)


@dataclass(slots=True)
class Turn:
    """The items that the store keeps of a new request, and what writes its answer."""

    items: tuple[StoredItem, ...]
    writer: ResponseWriter | None = None


def translate(
    context: TranslationContext, request: ResponsesRequest, earlier: bytes = b""
) -> GenerationRequest:
    """Return the neutral form of a request; `earlier` has the items before its own, as JSON."""
    for index, each in enumerate(request.include or ()):
        if each not in _INCLUDABLE:
            raise not_among(f"include[{index}]", sorted(_INCLUDABLE), each)
    if request.background and request.store is False:
        raise invalid("background needs store=true, to fetch the response from", "background")
    sampling = given_fields(request, _SAMPLING)
    if request.vllm_xargs:
        sampling["extra_args"] = request.vllm_xargs
    if wants_logprobs(request):
        sampling["logprobs"] = request.top_logprobs or 0
    use = tool_use(request)
    context.formats.check(use)
    _check_raw(context, request)
    asked = GenerationRequest(
        prompts=[conversation_job(request, context, use, earlier)],
        sampling=sampling,
        writer=partial(make_writer, request, None),
        named=lambda error, index: with_own_place(request, error).renamed(_NAMES),
        # Clients of this API ask for more than smaller models can write.
        default_max_tokens=request.max_output_tokens,
        is_stream=bool(request.stream or request.background),
        cache_salt=request.cache_salt,
        priority=request.priority,
        deadline_ms=request.deadline_ms,
        shape=shape_of(request),
        numbers_events=True,
        wants_text=bool(request.enable_response_messages),
        drops_turns=request.truncation == "auto",
    )
    context.formats.bind(asked, use, context.facts.vocabulary)
    asked.keeps_apart = asked.is_stream
    return asked


def _check_raw(context: TranslationContext, request: ResponsesRequest) -> None:
    """Raise ApiError for raw messages of an answer whose reasoning is to be left out."""
    name = "enable_response_messages"
    hides = request.include_reasoning is False and context.formats.separates_reasoning
    if hides and request.enable_response_messages:
        raise invalid(
            f"{name}: the answer as the model has it would show the reasoning that "
            "include_reasoning=false leaves out; send one of the two",
            name,
        )


register(ResponsesRequest, translate)


def make_writer(
    request: ResponsesRequest, turn: Turn | None, exchange: Exchange, prepared: PreparedRequest
) -> ResponseWriter:
    """Return what writes the answer, and keep it; one without a turn was begun before."""
    writer = ResponseWriter(request, exchange, prepared)
    if request.background:
        writer.response.status = QUEUED
    if not writer.response.store:
        return writer
    store = exchange.server.responses
    if turn is None:
        writer.keep(store, store.find(exchange.owner, writer.response.id))
        return writer
    entry = Entry(
        owner=exchange.owner,
        id=writer.response.id,
        created=exchange.created,
        expires_at=0.0,
        status=writer.response.status,
        is_background=bool(request.background),
        is_stream=prepared.asked.is_stream,
    )
    if store.begin(entry, Content(encode(writer.response), turn.items)):
        turn.writer = writer
        writer.keep(store, entry)
    return writer


async def create(exchange: Exchange) -> None:
    """Read a request, answer it, and keep its response unless it should not be kept."""
    async with admitted(exchange) as ticket:
        body = await exchange.body()
        before = await items_before(exchange, body)
        given = (as_array(before),) if before else ()
        read = await read_with(exchange, body, ResponsesRequest, translate, given)
        request, asked = read.request, read.asked
        asked.prepared = read.prompts
        turn = Turn(before + named(read.kept, exchange.request_id))
        asked.writer = partial(make_writer, request, turn)
        if request.background:
            ticket.leave()  # the background has a place of its own
            await _in_background(exchange, len(body), request, asked)
            return
        try:
            await answer(exchange, ticket, request, asked, RequestTask(exchange))
        finally:
            writer = turn.writer
            if writer is not None and not exchange.server.is_continued_later:
                assert writer.entry is not None, "its response is kept"
                exchange.server.responses.abandon(writer.entry, writer)


async def _in_background(
    exchange: Exchange, num_bytes: int, request: ResponsesRequest, asked: GenerationRequest
) -> None:
    """Begin a response in the background, and answer with it or with its events."""
    entry = await start(exchange, num_bytes, request, asked)
    store = exchange.server.responses
    run, content = store.runs.get(entry), await store.read(entry)
    if request.stream and run is not None:
        seconds = exchange.server.config.max_request_seconds
        await RequestTask(exchange).run(follow(exchange, run, -1), seconds)
    elif content is not None:
        await exchange.respond(content.body)
    else:
        raise ApiError(404, "the response was deleted", code="response_not_found")


async def items_before(exchange: Exchange, body: bytes) -> tuple[StoredItem, ...]:
    """Return the items of the response that a request continues, and of those before it."""
    try:
        name = _link.decode(body).previous_response_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ()  # the error is found again, and explained
    if name is None:
        return ()
    store = exchange.server.responses
    entry = store.find(exchange.owner, name)
    content = None if entry is None else await store.read(entry)
    if entry is None or content is None:
        raise invalid(
            f"previous_response_id: there is no response {name[:192]!r}; it was not kept, has "
            "expired, or belongs to another key: send the whole conversation as input",
            "previous_response_id",
            "previous_response_not_found",
        )
    if entry.status not in ("completed", "incomplete"):
        raise invalid(
            f"previous_response_id: the response {name[:192]!r} is {entry.status}, and cannot be "
            "continued",
            "previous_response_id",
        )
    return continued(content)


def translate_alone(context: TranslationContext, request: ResponsesRequest) -> GenerationRequest:
    """Return the neutral form of a request whose prompt depends on no response that is kept."""
    if request.previous_response_id is not None:
        raise invalid(
            "previous_response_id: a request is rendered without the responses that are kept; send "
            "the whole conversation as input",
            "previous_response_id",
        )
    return translate(context, request)


async def count(exchange: Exchange) -> None:
    """Return the number of tokens of a prompt."""
    async with admitted(exchange):
        body = await exchange.body()
        before = await items_before(exchange, body)
        given = (as_array(before),) if before else ()
        read = await read_with(exchange, body, InputTokensRequest, count_job, given)
        made = await prompt_of(exchange, read.asked, read.prompts, PROMPT_NAMES)
        await exchange.respond_json(InputTokensResponse(input_tokens=made.num_tokens))


def count_job(
    context: TranslationContext, request: InputTokensRequest, earlier: bytes = b""
) -> PromptJob:
    """Return the job that makes the prompt; `earlier` has the items before the request's own."""
    with refusals():
        check_generates(context.facts, PLACES)
    use = tool_use(request)
    context.formats.check(use)
    job = conversation_job(request, context, use, earlier)
    return msgspec.structs.replace(job, wants_text=False)
