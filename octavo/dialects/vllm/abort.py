"""/inference/v1/abort_requests: clients end their own requests, by the names of these."""

from __future__ import annotations

from octavo.serving.ending import AbortRequests, end
from octavo.serving.exchange import Exchange


async def abort(exchange: Exchange) -> None:
    """End requests of the same key; their clients get the tokens so far.

    A name that no request has, or has any more, is no error: it may have ended meanwhile.
    """
    asked = await exchange.read(AbortRequests)
    names, server = set(asked.request_ids), exchange.server
    for active in list(server.active.values()):
        record = active.record
        if record.request_id in names and record.owner == exchange.owner:
            await end(server, active)
    await exchange.respond(b"{}")
