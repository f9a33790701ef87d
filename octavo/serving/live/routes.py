"""The route of the live stream."""

from __future__ import annotations

import asyncio
import contextlib

from octavo.serving.exchange import Exchange
from octavo.serving.live.feed import LISTEN_SECONDS, Listener
from octavo.serving.live.schema import LiveFrame
from octavo.transport.deadline import RequestTask
from octavo.transport.dialect import STREAM_HEADERS
from octavo.transport.route import Route

_KIND = b"text/event-stream; charset=utf-8"
_END = b"data: [DONE]\n\n"
# It lasts for long; a server that is replaced must not wait for what comes behind it.
_HEADERS = (*STREAM_HEADERS, (b"connection", b"close"))


async def live(exchange: Exchange) -> None:
    """Send a frame about twice a second until the client leaves, or for an hour."""
    feed = exchange.server.live
    if exchange.method == "HEAD":
        await exchange.respond(b"", kind=_KIND)
        return
    listener = feed.join(exchange.owner)
    try:
        work = _send(exchange, listener)
        await RequestTask(exchange).run(work, LISTEN_SECONDS + exchange.server.config.stall_seconds)
    finally:
        feed.leave(listener)


async def _send(exchange: Exchange, listener: Listener) -> None:
    await exchange.start(200, [(b"content-type", _KIND), *_HEADERS])
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LISTEN_SECONDS):
            while frame := await listener.next():
                await exchange.write(frame, more=True)
    await exchange.write(_END, more=False)


LIVE_ROUTES = (
    Route(
        *("GET", "/v1/live", live),
        "What the server is doing now, about twice a second.",
        chunk=LiveFrame,
        kind="text/event-stream",
    ),
)
