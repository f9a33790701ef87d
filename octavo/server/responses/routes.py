"""The routes of the Responses API, and the handlers of those about responses that are kept."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from urllib.parse import parse_qs

from octavo.server.http.errors import ApiError, invalid
from octavo.server.http.exchange import Exchange
from octavo.server.http.route import Route
from octavo.server.responses.create import create
from octavo.server.responses.dialect import RESPONSES
from octavo.server.responses.items import MOST_LISTED, USUALLY_LISTED, page
from octavo.server.responses.schema import (
    DeletedResponse,
    ItemList,
    ResponseEvent,
    ResponseObject,
    ResponsesRequest,
)
from octavo.server.responses.store import Content, Entry

_RETRIEVED = ("include", "include[]", "stream", "starting_after", "include_obfuscation")
_LISTED = ("after", "include", "include[]", "limit", "order")


async def retrieve(exchange: Exchange) -> None:
    """Return a response, as it is now or as it has ended."""
    given = _query(exchange, _RETRIEVED)
    entry = _entry(exchange)
    if _flag(given, "stream"):
        raise invalid("stream: only responses in the background are streamed again", "stream")
    await exchange.respond((await _content(exchange, entry)).body)


async def delete(exchange: Exchange) -> None:
    """Forget a response; one that is still answered is not kept when it ends."""
    entry = _entry(exchange)
    exchange.server.responses.delete(entry)
    await exchange.respond_json(DeletedResponse(id=entry.id))


async def input_items(exchange: Exchange) -> None:
    """Return a page of the items that preceded an answer."""
    given = _query(exchange, _LISTED)
    entry = _entry(exchange)
    limit = given.get("limit", str(USUALLY_LISTED))
    if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:9]) <= MOST_LISTED):
        raise invalid(f"limit: expected 1 to {MOST_LISTED}, got {limit[:32]!r}", "limit")
    order = given.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid(f"order: expected 'asc' or 'desc', got {order[:32]!r}", "order")
    content = await _content(exchange, entry)
    shown = page(
        content.items,
        after=given.get("after"),
        limit=int(limit),
        is_ascending=order == "asc",
    )
    await exchange.respond_json(shown)


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


def _query(exchange: Exchange, known: Collection[str]) -> dict[str, str]:
    """Return the parameters of the query; raise ApiError for one that is not known."""
    text = exchange.scope.get("query_string", b"").decode("latin-1")
    given = parse_qs(text, keep_blank_values=True)
    for name in given:
        if name not in known:
            listed = ", ".join(known)
            raise invalid(
                f"there is no parameter {name[:64]!r}; there are: {listed}",
                name[:64],
                "unknown_parameter",
            )
    return {name: values[-1] for name, values in given.items()}


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
        query=(
            ("stream", "true: the events instead."),
            ("starting_after", "The number of the last event that was received."),
        ),
    ),
    Route(
        *("DELETE", "/v1/responses/{id}", delete, "Forget a response."),
        response=DeletedResponse,
    ),
)
