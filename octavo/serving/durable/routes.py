"""The route of streams that continue: `GET /v1/streams/{id}?from=N`."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.serving.durable.positions import check_query
from octavo.serving.exchange import Exchange
from octavo.serving.generate import admitted
from octavo.transport.deadline import RequestTask
from octavo.transport.errors import ApiError


async def resume(id_prefixes: Sequence[str], exchange: Exchange) -> None:
    """Respond with the rest of a request's answer; only the key that sent it can ask.

    The parameter is the request's id, or its answer's, which has one of these prefixes.
    """
    server = exchange.server
    check_query(exchange)
    durability = server.durability
    if durability is None:
        raise ApiError(
            404,
            "this server keeps no journal, so that streams end with their connection; start it "
            "with --journal PATH",
            code="journal_disabled",
        )
    name = exchange.parameter
    for prefix in id_prefixes:
        name = name.removeprefix(prefix)
    request = durability.requests.find(exchange.owner, name)
    if request is None:
        raise ApiError(
            404,
            f"there is no stream {exchange.parameter[:128]!r}: requests are kept for "
            f"{server.config.journal_seconds:g} s after their end",
            code="stream_not_found",
        )
    async with admitted(exchange, len(request.head)) as ticket:
        task = RequestTask(exchange)
        work = durability.resume(exchange, ticket, request, task)
        await task.run(work, server.config.max_request_seconds)
