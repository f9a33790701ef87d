"""A response as server-sent events: whole frames, a bounded wait for the reader, one end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from octavo.server.http.errors import ApiError, ClientGoneError
from octavo.server.http.exchange import Exchange, encode

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies are to hand frames on as they come
]
_DONE = b"data: [DONE]\n\n"
_PING = b": ping\n\n"


class EventStream:
    """One client's stream."""

    def __init__(self, exchange: Exchange) -> None:
        self._call = exchange
        self._clock = exchange.server.clock
        self._ping_seconds = exchange.server.config.ping_seconds
        self._pinger: asyncio.Task[None] | None = None
        self._last = 0.0
        self.waited_seconds = 0.0  # for the client to take what was written

    @property
    def is_open(self) -> bool:
        """Whether the status line is out."""
        return self._call.status is not None

    async def open(self) -> None:
        """The status line: from now on an error is a frame."""
        self._call.is_event_stream = True
        await self._call.start(200, list(_HEADERS))
        self._last = self._clock()
        if self._ping_seconds:
            self._pinger = asyncio.get_running_loop().create_task(self._ping())

    def events_now(self, payloads: Iterable[bytes], now: float) -> None:
        """What `events` does, where the call need not wait for the reader."""
        for payload in payloads:
            self._call.write_now(b"data: %b\n\n" % payload)
            self._last = now

    async def events(self, payloads: Iterable[bytes]) -> None:
        """One frame for each payload, in one write."""
        if frames := [b"data: %b\n\n" % payload for payload in payloads]:
            await self._write(b"".join(frames))

    async def close(self) -> None:
        """The mark of the end."""
        self.stop_pinging()
        await self._write(_DONE, more=False)

    async def fail(self, error: ApiError) -> None:
        """The error as a frame, and the end."""
        self.stop_pinging()
        await end_stream(self._call, error)

    def stop_pinging(self) -> None:
        """Whatever happens, no task is left behind."""
        if self._pinger is not None:
            self._pinger.cancel()
            self._pinger = None

    async def _write(self, frame: bytes, *, more: bool = True) -> None:
        began = self._clock()
        await self._call.write(frame, more=more)
        self._last = self._clock()
        self.waited_seconds += self._last - began

    async def _ping(self) -> None:
        """A comment in a long silence, so that nothing between takes the stream for dead."""
        while True:
            rest = self._last + self._ping_seconds - self._clock()
            if rest > 0:
                await asyncio.sleep(rest)
            else:
                try:
                    await self._write(_PING)
                except ClientGoneError:  # the connection is cut, which ends the request too
                    return


async def end_stream(exchange: Exchange, error: ApiError) -> None:
    """The error as a frame, and the end."""
    await exchange.write(b"data: %b\n\n%b" % (encode(error.body()), _DONE))
