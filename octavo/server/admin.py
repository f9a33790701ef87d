"""What an operator may do, on a unix socket of its own that no client reaches.

curl --unix-socket PATH http://localhost/in-flight
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Annotated, Literal

from msgspec import Meta, Struct

from octavo.api.async_llm import AsyncLLM
from octavo.observe.diagnosis import diagnose
from octavo.server.http.errors import ApiError
from octavo.server.http.exchange import Exchange
from octavo.server.http.route import Handler, Route

LEVELS = Literal["debug", "info", "warning", "error"]


class LogLevel(Struct, kw_only=True, forbid_unknown_fields=True):
    """How much is logged."""

    level: LEVELS


class AbortRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which request is to end."""

    request_id: Annotated[str, Meta(max_length=256)]


async def in_flight(exchange: Exchange) -> None:
    """Every request that is being answered."""
    now = exchange.server.clock()
    active = [
        {
            "request_id": flight.record.request_id,
            "owner": flight.record.owner,
            "age_seconds": round(now - flight.record.began, 3),
            "is_stream": flight.is_stream,
            "prompt_tokens": flight.record.num_prompt_tokens,
            "is_waiting": flight.record.entered_at is None,
        }
        for flight in exchange.server.active.values()
    ]
    await exchange.respond_json({"in_flight": active})


async def abort(exchange: Exchange) -> None:
    """End a request; its client gets what there is."""
    request = await exchange.read(AbortRequest)
    server = exchange.server
    found = 0
    for flight in list(server.active.values()):
        if flight.record.request_id != request.request_id:
            continue
        found += 1
        if flight.record.entered_at is None:  # the engine does not know it yet
            flight.stop(ApiError(503, "an operator ended this request", code="aborted"))
        for engine_id in flight.engine_ids:
            await server.engine.abort(engine_id)
    if not found:
        raise ApiError(404, "no such request is in flight", code="request_not_found")
    await exchange.respond_json({"aborted": found})


async def drain(exchange: Exchange) -> None:
    """Take no more requests; those that run finish. /resume ends it."""
    exchange.server.is_draining = True
    await exchange.respond_json({"draining": True, "open": exchange.server.admission.num_open})


async def resume(exchange: Exchange) -> None:
    """After pause and after drain."""
    exchange.server.is_draining = False
    await exchange.server.engine.resume()
    await exchange.respond_json({"draining": False})


async def log_level(exchange: Exchange) -> None:
    """From now on."""
    request = await exchange.read(LogLevel)
    logging.getLogger("octavo").setLevel(request.level.upper())
    await exchange.respond_json({"level": request.level})


async def diagnosis(exchange: Exchange) -> None:
    """What holds the server."""
    gates = exchange.server.admission
    admission = {
        "waiting_requests": gates.num_waiting,
        "waiting_tokens": gates.waiting_tokens,
        "sequences_inside": gates.num_admitted,
        "expected_wait_seconds": round(gates.seconds_to_wait(), 3),
    }
    await exchange.respond_json(diagnose(exchange.server.engine.snapshot(), admission))


def _commanding(command: Callable[[AsyncLLM], Awaitable[object]]) -> Handler:
    async def handle(exchange: Exchange) -> None:
        await command(exchange.server.engine)
        await exchange.respond_json({"success": True})

    return handle


ADMIN_ROUTES = (
    Route("GET", "/in-flight", in_flight, "Every request that is being answered."),
    Route("POST", "/abort", abort, "End a request.", AbortRequest),
    Route("POST", "/pause", _commanding(AsyncLLM.pause), "Plan no more steps."),
    Route("POST", "/resume", resume, "Go on after pause or drain."),
    Route("POST", "/drain", drain, "Take no more requests."),
    Route(
        *("POST", "/reset-prefix-cache", _commanding(AsyncLLM.reset_prefix_cache)),
        "Share nothing that was computed before now.",
    ),
    Route("POST", "/log-level", log_level, "How much is logged.", LogLevel),
    Route("GET", "/diagnosis", diagnosis, "What holds the server, and which setting moves it."),
)
