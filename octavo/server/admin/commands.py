"""Operators' commands about requests, the prefix cache and the log.

curl --unix-socket PATH http://localhost/in_flight
"""

from __future__ import annotations

import logging
from typing import Annotated, Literal

from msgspec import Meta, Struct

from octavo.observe.diagnosis import diagnose
from octavo.server.http.exchange import Exchange
from octavo.server.server import ActiveRequest, Server
from octavo.transport.errors import ApiError

LEVELS = Literal["debug", "info", "warning", "error"]
MAX_ABORTED = 4096  # ids in one request
_ENDED = "an operator ended this request"


class LogLevel(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /log_level."""

    level: LEVELS


class AbortRequests(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /abort_requests."""

    request_ids: Annotated[
        list[Annotated[str, Meta(max_length=256)]], Meta(min_length=1, max_length=MAX_ABORTED)
    ]


async def in_flight(exchange: Exchange) -> None:
    now = exchange.server.clock()
    listed = [
        {
            "request_id": active.record.request_id,
            "owner": active.record.owner,
            "age_seconds": round(now - active.record.began, 3),
            "is_stream": active.is_stream,
            "prompt_tokens": active.record.num_prompt_tokens,
            "is_waiting": active.record.entered_at is None,
        }
        for active in exchange.server.active.values()
    ]
    await exchange.respond_json({"in_flight": listed})


async def abort(exchange: Exchange) -> None:
    """End requests; their clients get the tokens so far."""
    asked = await exchange.read(AbortRequests)
    names = set(asked.request_ids)
    server = exchange.server
    found = [each for each in server.active.values() if each.record.request_id in names]
    for active in found:
        await end(server, active)
    missing = sorted(names - {each.record.request_id for each in found})
    if not found:
        raise ApiError(404, "no such request is in flight", code="request_not_found")
    await exchange.respond_json({"aborted": len(found), "not_found": missing})


async def end_all(server: Server) -> None:
    """End all requests; the lines of batches are tried again later."""
    for active in list(server.active.values()):
        await end(server, active, is_for_now=True)


async def end(server: Server, active: ActiveRequest, *, is_for_now: bool = False) -> None:
    """End a request, whose client gets the tokens so far.

    The line of a batch has an error as its result instead, unless it may be tried again later.
    """
    if active.is_background:
        active.stop(ApiError(503 if is_for_now else 409, _ENDED, code="aborted"))
        return
    if active.record.entered_at is None:  # the engine does not have it yet
        active.stop(ApiError(503, _ENDED, code="aborted"))
    for engine_id in active.engine_ids:
        await server.llm.abort(engine_id)


async def log_level(exchange: Exchange) -> None:
    request = await exchange.read(LogLevel)
    logging.getLogger("octavo").setLevel(request.level.upper())
    await exchange.respond_json({"level": request.level})


async def reset_prefix_cache(exchange: Exchange) -> None:
    """Share nothing that was computed before now; no request is disturbed."""
    await exchange.server.llm.reset_prefix_cache()
    await exchange.respond_json({"success": True})


async def diagnosis(exchange: Exchange) -> None:
    queue = exchange.server.admission
    admission = {
        "waiting_requests": queue.num_waiting,
        "waiting_tokens": queue.waiting_tokens,
        "admitted_sequences": queue.num_admitted,
        "expected_wait_seconds": round(queue.seconds_to_wait(), 3),
    }
    await exchange.respond_json(diagnose(exchange.server.llm.snapshot(), admission))
