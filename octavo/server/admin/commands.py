"""Operators' commands about requests, the prefix cache and the log.

curl --unix-socket PATH http://localhost/in_flight
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from msgspec import Struct

from octavo.api.control import CommandFailedError
from octavo.api.outputs import EngineDeadError
from octavo.observe.diagnosis import diagnose
from octavo.serving.ending import AbortRequests, end
from octavo.serving.exchange import Exchange
from octavo.transport.errors import ApiError, unavailable
from octavo.wire.commands import TIMED_OUT

LEVELS = Literal["debug", "info", "warning", "error"]


class LogLevel(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /log_level."""

    level: LEVELS


@contextmanager
def command_errors() -> Iterator[None]:
    """Respond with an error to a command that the engine does not carry out."""
    try:
        yield
    except CommandFailedError as error:
        status = 504 if error.code == TIMED_OUT else 500
        raise ApiError(status, str(error), code=error.code) from None
    except EngineDeadError as error:
        raise unavailable(f"there is no engine: {error}", "engine_not_ready") from None


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


async def log_level(exchange: Exchange) -> None:
    """Set the level of this process and of the engine's."""
    request = await exchange.read(LogLevel)
    ours = logging.getLogger("octavo")
    ours.setLevel(request.level.upper())
    with command_errors():
        await exchange.server.llm.set_log_level(ours.level)
    await exchange.respond_json({"level": request.level})


async def reset_prefix_cache(exchange: Exchange) -> None:
    """Share nothing that was computed before now; no request is disturbed."""
    with command_errors():
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
    snapshots = [engine.snapshot() for engine in exchange.server.llm.engines]
    await exchange.respond_json(diagnose(snapshots, admission))
