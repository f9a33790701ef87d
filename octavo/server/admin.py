"""The routes for operators, on a unix socket that clients cannot reach.

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
    """The body of /log-level."""

    level: LEVELS


class AbortRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /abort."""

    request_id: Annotated[str, Meta(max_length=256)]


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
    """End a request; its client gets the tokens so far."""
    request = await exchange.read(AbortRequest)
    server = exchange.server
    found = 0
    for active in list(server.active.values()):
        if active.record.request_id != request.request_id:
            continue
        found += 1
        if active.record.entered_at is None:  # the engine does not have it yet
            active.stop(ApiError(503, "an operator ended this request", code="aborted"))
        for engine_id in active.engine_ids:
            await server.llm.abort(engine_id)
    if not found:
        raise ApiError(404, "no such request is in flight", code="request_not_found")
    await exchange.respond_json({"aborted": found})


async def drain(exchange: Exchange) -> None:
    """Reject new requests until /resume; running ones may finish."""
    exchange.server.is_draining = True
    await exchange.respond_json({"draining": True, "open": exchange.server.admission.num_open})


async def pause(exchange: Exchange) -> None:
    """Plan no more steps until /resume."""
    await exchange.server.llm.pause()
    await exchange.respond_json({"paused": True})


async def resume(exchange: Exchange) -> None:
    """Continue after /pause or /drain."""
    exchange.server.is_draining = False
    await exchange.server.llm.resume()
    await exchange.respond_json({"paused": False, "draining": False})


async def log_level(exchange: Exchange) -> None:
    request = await exchange.read(LogLevel)
    logging.getLogger("octavo").setLevel(request.level.upper())
    await exchange.respond_json({"level": request.level})


async def diagnosis(exchange: Exchange) -> None:
    queue = exchange.server.admission
    admission = {
        "waiting_requests": queue.num_waiting,
        "waiting_tokens": queue.waiting_tokens,
        "admitted_sequences": queue.num_admitted,
        "expected_wait_seconds": round(queue.seconds_to_wait(), 3),
    }
    await exchange.respond_json(diagnose(exchange.server.llm.snapshot(), admission))


def _commanding(command: Callable[[AsyncLLM], Awaitable[object]]) -> Handler:
    async def handle(exchange: Exchange) -> None:
        await command(exchange.server.llm)
        await exchange.respond_json({"success": True})

    return handle


ADMIN_ROUTES = (
    Route("GET", "/in-flight", in_flight, "Every request that is being answered."),
    Route("POST", "/abort", abort, "End a request.", AbortRequest),
    Route("POST", "/pause", pause, "Plan no more steps."),
    Route("POST", "/resume", resume, "Continue after /pause or /drain."),
    Route("POST", "/drain", drain, "Reject new requests; running ones may finish."),
    Route(
        *("POST", "/reset-prefix-cache", _commanding(AsyncLLM.reset_prefix_cache)),
        "Stop sharing prefixes that were computed before now.",
    ),
    Route("POST", "/log-level", log_level, "Set the level of the log.", LogLevel),
    Route(
        "GET",
        "/diagnosis",
        diagnosis,
        "The bottleneck of the last steps, and the setting that would help.",
    ),
)
