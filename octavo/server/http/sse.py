"""A response as server-sent events: whole frames, a bounded wait for the reader, one end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from octavo.server.http.errors import ApiError, ClientGoneError
from octavo.server.http.exchange import Exchange, encode

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies must forward frames as they come
]
_DONE = b"data: [DONE]\n\n"
_PING = b": ping\n\n"


class EventStream:
    """One client's event stream."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._clock = exchange.server.clock
        self._ping_seconds = exchange.server.config.ping_seconds
        self._pinger: asyncio.Task[None] | None = None
        self._last = 0.0
        self.is_open = False  # the status line has been sent
        self.waited_seconds = 0.0  # until the client took what was written

    async def open(self) -> None:
        """Send the status line; from now on an error is a frame."""
        self._exchange.is_event_stream = self.is_open = True
        await self._exchange.start(200, list(_HEADERS))
        self._last = self._clock()
        if self._ping_seconds:
            self._pinger = asyncio.get_running_loop().create_task(self._ping())

    def events_now(self, payloads: Iterable[bytes], now: float) -> None:
        """Write one frame for each payload at once; only while `must_wait` is False."""
        for payload in payloads:
            self._exchange.write_now(b"data: %b\n\n" % payload)
            self._last = now

    async def events(self, payloads: Iterable[bytes]) -> None:
        """Write one frame for each payload, all of them in one write."""
        frames = b""
        for payload in payloads:
            frames += b"data: %b\n\n" % payload
        if frames:
            await self._write(frames)

    async def close(self) -> None:
        """Send the mark of the end."""
        self.stop_pinging()
        await self._write(_DONE, more=False)

    async def fail(self, error: ApiError) -> None:
        """Send an error as a frame, and the end."""
        self.stop_pinging()
        await end_stream(self._exchange, error)

    def stop_pinging(self) -> None:
        """Cancel the task that pings; call it however the stream ends."""
        if self._pinger is not None:
            self._pinger.cancel()
            self._pinger = None

    async def _write(self, frame: bytes, *, more: bool = True) -> None:
        began = self._clock()
        await self._exchange.write(frame, more=more)
        self._last = self._clock()
        self.waited_seconds += self._last - began

    async def _ping(self) -> None:
        """Send a comment in each long silence, so that no proxy closes the connection."""
        while True:
            rest = self._last + self._ping_seconds - self._clock()
            if rest > 0:
                await asyncio.sleep(rest)
            elif self._exchange.is_stalled():  # a write may wait for the reader already
                await asyncio.sleep(self._ping_seconds)
            else:
                try:
                    await self._write(_PING)
                except ClientGoneError:  # the connection is cut, which ends the request too
                    return


async def end_stream(exchange: Exchange, error: ApiError) -> None:
    """Send an error as a frame, and the end."""
    await exchange.write(b"data: %b\n\n%b" % (encode(error.body()), _DONE))
