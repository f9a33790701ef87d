"""Operators' commands that stop the engine's work for a while: pause, sleep, drain, and their ends.

What becomes of the requests in the engine is the mode: `keep` lets them wait where they are,
`wait` lets them finish first, and `abort` ends them. A server that sleeps has no engine, so that
its memory is free; requests that were kept continue in the next engine behind their tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import get_args
from urllib.parse import parse_qsl

from octavo.api.async_llm import SleepLevel
from octavo.core.config import ConfigError
from octavo.server.admin.commands import end
from octavo.server.http.errors import invalid
from octavo.server.http.exchange import Exchange
from octavo.server.server import Server

MODES = ("keep", "wait", "abort")
MODE = ("mode", "What becomes of running requests: keep (default), wait or abort.")
LEVEL = ("level", "1 (default): the weights stay in the system's file cache; 2: they do not.")
_POLL_SECONDS = 0.02


async def pause(exchange: Exchange) -> None:
    """Plan no more steps until /resume; requests are accepted, and wait."""
    mode, server = _mode(_query(exchange, MODE[0])), exchange.server
    server.is_paused = True
    await _settle(server, mode)
    if server.is_paused:  # /resume may have come first
        await server.llm.pause()
    await exchange.respond_json({"paused": server.is_paused})


async def resume(exchange: Exchange) -> None:
    """Continue after /pause or /drain."""
    server = exchange.server
    server.is_draining = server.is_paused = False
    await server.llm.resume()
    server.admission.release()
    await exchange.respond_json({"paused": False, "draining": False})


async def is_paused(exchange: Exchange) -> None:
    await exchange.respond_json({"is_paused": exchange.server.is_paused})


async def drain(exchange: Exchange) -> None:
    """Reject new requests until /resume; running ones may finish."""
    exchange.server.is_draining = True
    await exchange.respond_json({"draining": True, "open": exchange.server.admission.num_open})


async def sleep(exchange: Exchange) -> None:
    """End the engine, whose memory becomes free, until /wake_up; new requests get a 503."""
    query = _query(exchange, MODE[0], LEVEL[0])
    mode, server = _mode(query), exchange.server
    levels = {str(level): level for level in get_args(SleepLevel)}
    level = levels.get(query.get("level", "1"))
    if level is None:
        raise invalid(f"level={query['level'][:64]!r} must be one of {', '.join(levels)}", "level")
    try:
        await _settle(server, mode)
        await server.llm.sleep(level)
    except ConfigError as error:
        raise invalid(str(error)) from None
    finally:
        if not server.is_paused:
            server.admission.release()
    await exchange.respond_json({"is_sleeping": True})


async def wake_up(exchange: Exchange) -> None:
    """Start an engine again, and respond when it is ready."""
    _query(exchange)
    await exchange.server.llm.wake_up()
    await exchange.respond_json({"is_sleeping": False})


async def is_sleeping(exchange: Exchange) -> None:
    await exchange.respond_json({"is_sleeping": exchange.server.llm.is_sleeping})


async def _settle(server: Server, mode: str) -> None:
    """Let running requests be as the mode says."""
    if mode == "wait":
        server.admission.hold()
        while server.admission.num_admitted and server.admission.is_held:
            await asyncio.sleep(_POLL_SECONDS)
    elif mode == "abort":
        for active in list(server.active.values()):
            await end(server, active)


def _mode(query: Mapping[str, str]) -> str:
    mode = query.get("mode", MODES[0])
    if mode not in MODES:
        raise invalid(f"mode={mode[:64]!r} must be one of {', '.join(MODES)}", "mode")
    return mode


def _query(exchange: Exchange, *known: str) -> dict[str, str]:
    """Return the parameters in the address; raise ApiError for one that has no effect here."""
    text = exchange.scope.get("query_string", b"").decode("latin-1")
    query = dict(parse_qsl(text, keep_blank_values=True))
    for name in query:
        if name not in known:
            listed = f"; there are {', '.join(known)}" if known else ""
            raise invalid(
                f"there is no parameter {name[:64]!r}{listed}", name[:64], "unknown_parameter"
            )
    return query
