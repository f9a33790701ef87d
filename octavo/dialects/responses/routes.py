"""The routes of the Responses API, and the handlers of those about responses that are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from operator import itemgetter

import msgspec

from octavo.dialects.common.render import rendering
from octavo.dialects.common.schema.rendered import RenderedRequest
from octavo.dialects.common.schema.usage import InputTokensResponse
from octavo.dialects.responses.background import CANCELLED, follow
from octavo.dialects.responses.create import count, create, translate_alone
from octavo.dialects.responses.dialect import ID_PREFIX, RESPONSES
from octavo.dialects.responses.schema import (
    DeletedResponse,
    InputTokensRequest,
    ItemList,
    ResponseEvent,
    ResponseObject,
    ResponsesRequest,
)
from octavo.dialects.responses.writer import known_number
from octavo.serving.exchange import Exchange
from octavo.serving.generate import admitted
from octavo.serving.schema.queries import page_of, query_of
from octavo.serving.store.responses import Content, Entry
from octavo.serving.store.run import Run
from octavo.transport.deadline import RequestTask
from octavo.transport.errors import ApiError, invalid
from octavo.transport.route import Route

_RETRIEVED = ("include", "include[]", "stream", "starting_after", "include_obfuscation")
MOST_LISTED, USUALLY_LISTED = 100, 20
_LISTED = ("after", "include", "include[]", "limit", "order")


async def retrieve(exchange: Exchange) -> None:
    """Return a response, as it is now or as it has ended."""
    given = query_of(exchange, _RETRIEVED)
    known = known_number(exchange)
    entry = _entry(exchange)
    if _flag(given, "stream"):
        await _stream(exchange, entry, known)
    elif entry.answerer is not None and not entry.is_final:
        await exchange.respond(entry.answerer.shown(entry.status))
    else:
        await exchange.respond((await _content(exchange, entry)).body)


async def cancel(exchange: Exchange) -> None:
    """End a response in the background; one that has ended stays as it is."""
    entry = _entry(exchange)
    if not entry.is_background:
        raise invalid(
            f"the response {entry.id[:192]!r} is not in the background; close its connection to "
            "cancel it"
        )
    run = exchange.server.responses.runs.get(entry)
    if run is not None and run.task is not None:
        run.stop(ApiError(409, "the response was cancelled", code=CANCELLED))
        await asyncio.wait({run.task})
    await exchange.respond((await _content(exchange, entry)).body)


async def _stream(exchange: Exchange, entry: Entry, known: int) -> None:
    """Write the events behind the one that the client knows."""
    server = exchange.server
    seconds = server.config.max_request_seconds
    run = server.responses.runs.get(entry)
    if run is None:
        events = (await _content(exchange, entry)).events
        if not events:
            await _resume(exchange, entry)
            return
        run = await asyncio.to_thread(Run.of, events)
    await RequestTask(exchange).run(follow(exchange, run, known), seconds)


async def _resume(exchange: Exchange, entry: Entry) -> None:
    """Continue a stream from the journal."""
    server, request = exchange.server, None
    if server.durability is not None and entry.is_stream:
        name = entry.id.removeprefix(ID_PREFIX)
        request = server.durability.requests.find(exchange.owner, name)
    if server.durability is None or request is None:
        raise invalid(
            "stream: the events of this response are not kept; those of responses in the "
            "background are, and with --journal those of all streams, for a while",
            "stream",
        )
    async with admitted(exchange, len(request.head)) as ticket:
        task = RequestTask(exchange)
        work = server.durability.resume(exchange, ticket, request, task)
        await task.run(work, server.config.max_request_seconds)


async def delete(exchange: Exchange) -> None:
    """Forget a response; one that is still answered is not kept when it ends."""
    entry = _entry(exchange)
    run = exchange.server.responses.runs.get(entry)
    exchange.server.responses.forget(entry)
    if run is not None:
        run.stop(ApiError(409, "the response was deleted", code=CANCELLED))
    await exchange.respond_json(DeletedResponse(id=entry.id))


async def input_items(exchange: Exchange) -> None:
    """Return a page of the items that preceded an answer."""
    given = query_of(exchange, _LISTED)
    entry = _entry(exchange)
    items = (await _content(exchange, entry)).items
    rows, place = page_of(items, itemgetter(0), given, USUALLY_LISTED, MOST_LISTED)
    await exchange.respond_json(ItemList(data=[msgspec.Raw(item) for _, item in rows], **place))


def _entry(exchange: Exchange) -> Entry:
    """Return the response that a request names; raise ApiError if it is not kept."""
    entry = exchange.server.responses.find(exchange.owner, exchange.parameter)
    if entry is None:
        raise not_kept(exchange)
    return entry


async def _content(exchange: Exchange, entry: Entry) -> Content:
    content = await exchange.server.responses.read(entry)
    if content is None:
        raise not_kept(exchange)
    return content


def not_kept(exchange: Exchange) -> ApiError:
    """Return the error for a response that is not there."""
    seconds = exchange.server.config.responses_seconds
    return ApiError(
        404,
        f"there is no response {exchange.parameter[:192]!r}: responses are kept for {seconds:g} s "
        "at most, unless the request has store=false, and only for the key that made them",
        code="response_not_found",
    )


def _flag(given: dict[str, str], name: str) -> bool:
    """Return a parameter that is true or false."""
    value = given.get(name, "false").lower()
    if value not in ("true", "false", "1", "0"):
        raise invalid(f"{name}: expected 'true' or 'false', got {value[:32]!r}", name)
    return value in ("true", "1")


RESPONSES_ROUTES: Sequence[Route] = (
    Route(
        *("POST", "/v1/responses", create, "Answer in items, which are kept."),
        *(ResponsesRequest, ResponseObject, ResponseEvent),
        dialect=RESPONSES,
    ),
    Route(
        *("POST", "/v1/responses/input_tokens", count),
        "The number of tokens that precede an answer.",
        *(InputTokensRequest, InputTokensResponse),
        dialect=RESPONSES,
    ),
    Route(
        *("GET", "/v1/responses/{id}/input_items", input_items),
        "The items that preceded an answer.",
        response=ItemList,
        query=(
            ("limit", "The most items of a page, 20 by default."),
            ("order", "asc, or desc for the last first, which is the default."),
            ("after", "The id of the item behind which the page begins."),
        ),
    ),
    Route(
        *("GET", "/v1/responses/{id}", retrieve, "A response that is kept."),
        response=ResponseObject,
        chunk=ResponseEvent,
        dialect=RESPONSES,
        query=(
            ("stream", "true: the events instead."),
            ("starting_after", "The number of the last event that was received."),
        ),
    ),
    Route(
        *("POST", "/v1/responses/{id}/cancel", cancel, "End a response in the background."),
        response=ResponseObject,
    ),
    Route(
        *("DELETE", "/v1/responses/{id}", delete, "Forget a response."),
        response=DeletedResponse,
    ),
    Route(
        *("POST", "/v1/responses/render", rendering(ResponsesRequest, translate_alone, ID_PREFIX)),
        "The request of the Responses API as token ids, without running it.",
        *(ResponsesRequest, RenderedRequest),
        dialect=RESPONSES,
    ),
)
