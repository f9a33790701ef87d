"""A response in frames: whole frames, a bounded wait for the reader, one end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from octavo.transport.dialect import STREAM_HEADERS
from octavo.transport.errors import ApiError, ClientGoneError
from octavo.transport.exchange import HttpExchange


class ResponseStream:
    """One client's stream, in the frames of its dialect."""

    def __init__(self, exchange: HttpExchange, failure: Callable[[ApiError], bytes]) -> None:
        self._exchange = exchange
        self._failure = failure  # the frames of an error, after which nothing follows
        self._clock = exchange.server.clock
        self._ping = exchange.dialect.ping
        self._ping_seconds = exchange.server.config.ping_seconds
        self._pinger: asyncio.Task[None] | None = None
        self._last = 0.0
        self.is_open = False  # the status line has been sent
        self.waited_seconds = 0.0  # until the client took what was written

    async def open(self) -> None:
        """Send the status line; from now on an error is a frame."""
        exchange = self._exchange
        exchange.error_frames, self.is_open = self._failure, True
        kind = (b"content-type", exchange.dialect.stream_kind.encode())
        await exchange.start(200, [kind, *STREAM_HEADERS])
        self._last = self._clock()
        if self._ping_seconds and self._ping:
            self._pinger = asyncio.get_running_loop().create_task(self._keep_alive())

    def write_now(self, frames: Iterable[bytes], now: float) -> None:
        """Write frames at once; only while `must_wait` is False."""
        for frame in frames:
            self._exchange.write_now(frame)
            self._last = now

    async def write(self, frames: Iterable[bytes], *, more: bool = True) -> None:
        """Write frames in one write; without `more` it is the end."""
        part = b"".join(frames)
        if not more:
            self.stop_pinging()
        elif not part:
            return
        began = self._clock()
        await self._exchange.write(part, more=more)
        self._last = self._clock()
        self.waited_seconds += self._last - began

    async def fail(self, error: ApiError) -> None:
        """Send an error, and end the stream."""
        await self.write((self._failure(error),), more=False)

    def stop_pinging(self) -> None:
        """Cancel the task that pings; call it however the stream ends."""
        if self._pinger is not None:
            self._pinger.cancel()
            self._pinger = None

    async def _keep_alive(self) -> None:
        """Send a ping in each long silence, so that no proxy closes the connection."""
        while True:
            rest = self._last + self._ping_seconds - self._clock()
            if rest > 0:
                await asyncio.sleep(rest)
            elif self._exchange.is_stalled():  # a write may wait for the reader already
                await asyncio.sleep(self._ping_seconds)
            else:
                try:
                    await self.write((self._ping,))
                except ClientGoneError:  # the connection is cut, which ends the request too
                    return
