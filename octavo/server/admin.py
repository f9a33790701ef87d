"""What an operator may do, on a unix socket of its own that no client reaches.

curl --unix-socket PATH http://localhost/in-flight
"""

from __future__ import annotations

import logging
from typing import Annotated, Literal

from msgspec import Meta, Struct

from octavo.observe.diagnosis import diagnose
from octavo.server.engine import Command
from octavo.server.http.errors import ApiError
from octavo.server.http.exchange import Call
from octavo.server.http.route import Handler, Route

LEVELS = Literal["debug", "info", "warning", "error"]


class LogLevel(Struct, kw_only=True):
    """How much is logged."""

    level: LEVELS


class AbortRequest(Struct, kw_only=True):
    """Which request is to end."""

    request_id: Annotated[str, Meta(max_length=256)]


async def in_flight(call: Call) -> None:
    """Every request that is being answered."""
    now = call.server.clock()
    flights = [
        {
            "request_id": flight.record.request_id,
            "owner": flight.record.owner,
            "age_seconds": round(now - flight.record.began, 3),
            "is_stream": flight.is_stream,
            "prompt_tokens": flight.record.num_prompt_tokens,
            "is_waiting": flight.record.entered_at is None,
        }
        for flight in call.server.flights.values()
    ]
    await call.respond_json({"in_flight": flights})


async def abort(call: Call) -> None:
    """End a request; its client gets what there is."""
    request = await call.read(AbortRequest)
    server = call.server
    found = 0
    for flight in list(server.flights.values()):
        if flight.record.request_id != request.request_id:
            continue
        found += 1
        if flight.record.entered_at is None:  # the engine does not know it yet
            flight.stop(ApiError(503, "an operator ended this request", code="aborted"))
        for engine_id in flight.engine_ids:
            await server.engine.abort(engine_id)
    if not found:
        raise ApiError(404, "no such request is in flight", code="request_not_found")
    await call.respond_json({"aborted": found})


async def drain(call: Call) -> None:
    """Take no more requests; those that run finish. /resume ends it."""
    call.server.is_draining = True
    await call.respond_json({"draining": True, "open": call.server.admission.num_open})


async def resume(call: Call) -> None:
    """After pause and after drain."""
    call.server.is_draining = False
    await call.server.engine.command("resume")
    await call.respond_json({"draining": False})


async def log_level(call: Call) -> None:
    """From now on."""
    request = await call.read(LogLevel)
    logging.getLogger("octavo").setLevel(request.level.upper())
    await call.respond_json({"level": request.level})


async def diagnosis(call: Call) -> None:
    """What holds the server."""
    gates = call.server.admission
    admission = {
        "waiting_requests": gates.num_waiting,
        "waiting_tokens": gates.waiting_tokens,
        "sequences_inside": gates.num_inside,
        "expected_wait_seconds": round(gates.seconds_to_wait(), 3),
    }
    await call.respond_json(diagnose(call.server.engine.snapshot(), admission))


def _commanding(command: Command) -> Handler:
    async def handle(call: Call) -> None:
        await call.server.engine.command(command)
        await call.respond_json({"success": True})

    return handle


ADMIN_ROUTES = (
    Route("GET", "/in-flight", in_flight, "Every request that is being answered."),
    Route("POST", "/abort", abort, "End a request.", AbortRequest),
    Route("POST", "/pause", _commanding("pause"), "Plan no more steps."),
    Route("POST", "/resume", resume, "Go on after pause or drain."),
    Route("POST", "/drain", drain, "Take no more requests."),
    Route(
        *("POST", "/reset-prefix-cache", _commanding("reset_prefix_cache")),
        "Share nothing that was computed before now.",
    ),
    Route("POST", "/log-level", log_level, "How much is logged.", LogLevel),
    Route("GET", "/diagnosis", diagnosis, "What holds the server, and which setting moves it."),
)
