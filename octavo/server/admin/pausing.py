"""Operators' commands that stop the engine's work for a while: pause, sleep, drain, and their ends.

What becomes of the requests in the engine is the mode: `keep` lets them wait where they are,
`wait` lets them finish first, and `abort` ends them. A server that sleeps has no engine, so that
its memory is free; requests that were kept continue in the next engine behind their tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import get_args

from octavo.api.control import SLEEP_SECONDS, RestartError, SleepError, SleepLevel
from octavo.api.outputs import EngineDeadError
from octavo.core.config import ConfigError
from octavo.server.admin.commands import command_errors
from octavo.serving.ending import end_all
from octavo.serving.exchange import Exchange
from octavo.serving.schema.queries import query_of
from octavo.serving.server import Server
from octavo.transport.errors import ApiError, invalid, unavailable

MODES = ("keep", "wait", "abort")
MODE = ("mode", "What becomes of running requests: keep (default), wait or abort.")
LEVEL = ("level", "1 (default): the weights stay in the system's file cache; 2: they do not.")
_POLL_SECONDS = 0.02


async def pause(exchange: Exchange) -> None:
    """Plan no more steps until /resume; requests are accepted, and wait."""
    mode, server = _mode(query_of(exchange, (MODE[0],))), exchange.server
    server.is_paused = True
    await _settle(server, mode, lambda: server.is_paused)
    if server.is_paused:  # /resume may have come first
        with command_errors():
            await server.llm.pause()
    await exchange.respond_json({"paused": server.is_paused})


async def resume(exchange: Exchange) -> None:
    """Continue after /pause or /drain."""
    server = exchange.server
    server.is_draining = server.is_paused = False
    server.admission.release()
    with command_errors():
        await server.llm.resume()
    await exchange.respond_json({"paused": False, "draining": False})


async def is_paused(exchange: Exchange) -> None:
    await exchange.respond_json({"is_paused": exchange.server.is_paused})


async def drain(exchange: Exchange) -> None:
    """Reject new requests until /resume; running ones may finish."""
    exchange.server.is_draining = True
    await exchange.respond_json({"draining": True, "open": exchange.server.admission.num_open})


async def sleep(exchange: Exchange) -> None:
    """End the engine, whose memory becomes free, until /wake_up; new requests get a 503."""
    query = query_of(exchange, (MODE[0], LEVEL[0]))
    mode, server = _mode(query), exchange.server
    levels = {str(level): level for level in get_args(SleepLevel)}
    level = levels.get(query.get("level", "1"))
    if level is None:
        raise invalid(f"level={query['level'][:64]!r} must be one of {', '.join(levels)}", "level")
    num_wakes = server.num_wakes
    if server.idle is not None:
        server.idle.leave()
    try:
        if not await _settle(server, mode, lambda: server.num_wakes == num_wakes):
            raise SleepError("/wake_up or /resume came before the running requests had finished")
        await server.llm.sleep(level)
    except ConfigError as error:
        raise invalid(str(error)) from None
    except SleepError as error:
        raise _interrupted(error, "/sleep") from None
    except EngineDeadError as error:
        raise unavailable(f"there is no engine: {error}", "engine_not_ready") from None
    except TimeoutError:
        raise unavailable(
            f"the engine's process has not ended within {SLEEP_SECONDS:g} s", "engine_not_ready"
        ) from None
    finally:
        if not server.is_paused:
            server.admission.release()
    await exchange.respond_json({"is_sleeping": True})


async def wake_up(exchange: Exchange) -> None:
    """Start an engine again, and respond when it is ready."""
    query_of(exchange, ())
    exchange.server.num_wakes += 1
    try:
        await exchange.server.llm.wake_up()
    except SleepError as error:
        raise _interrupted(error, "/wake_up") from None
    except EngineDeadError as error:
        raise unavailable(f"the engine could not start: {error}", "engine_not_ready") from None
    await exchange.respond_json({"is_sleeping": False})


async def restart(exchange: Exchange) -> None:
    """Restart the engines one after the other, and respond when all are ready again."""
    query_of(exchange, ())
    try:
        count = await exchange.server.llm.restart()
    except ConfigError as error:
        raise invalid(str(error)) from None
    except RestartError as error:
        raise ApiError(409, str(error), code="interrupted") from None
    except EngineDeadError as error:
        raise unavailable(f"the engine could not start: {error}", "engine_not_ready") from None
    await exchange.respond_json({"restarted": count})


async def is_sleeping(exchange: Exchange) -> None:
    await exchange.respond_json({"is_sleeping": exchange.server.llm.is_sleeping})


async def _settle(server: Server, mode: str, is_wanted: Callable[[], bool]) -> bool:
    """Let running requests be as the mode says; return whether that is still wanted then."""
    if mode == "wait":
        server.admission.hold()
        while server.admission.num_admitted:
            if not (server.admission.is_held and is_wanted()):
                return False
            await asyncio.sleep(_POLL_SECONDS)
    elif mode == "abort":
        await end_all(server)
    return is_wanted()


def _interrupted(error: SleepError, route: str) -> ApiError:
    return ApiError(409, f"{error}; send {route} again if you want that", code="interrupted")


def _mode(query: Mapping[str, str]) -> str:
    mode = query.get("mode", MODES[0])
    if mode not in MODES:
        raise invalid(f"mode={mode[:64]!r} must be one of {', '.join(MODES)}", "mode")
    return mode
