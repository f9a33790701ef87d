"""One HTTP connection as the application sees it, with a client that reads at any pace.

It is an `Answer` that behaves like the server's own: writing waits while too much is unread, data
written after the connection has closed is dropped, and `receive` reports a disconnect after the end
of the response too.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

from octavo.transport.answer import Headers, RequestHead

# The delay from a read until a waiting writer continues, as in a busy event loop, in which other
# tasks run first.
TURN_SECONDS = 0.005


class ProtocolError(AssertionError):
    """A violation of the protocol by the application."""


class Connection:
    """The connection of one request. Its body arrives in pieces, each after a delay."""

    def __init__(
        self, name: str, method: str, path: str, body: bytes = b"", high_water: int = 600
    ) -> None:
        half = len(body) // 2
        self.pieces: list[tuple[float, bytes]] = [(0.0, body[:half]), (0.0, body[half:])]
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.received = b""
        self.is_whole = False  # the response is complete
        self.was_cut = False  # the server closed it
        self.is_closed = False
        self.high_water = high_water  # unread bytes above which a writer waits
        self.most_unread = self.largest_write = 0
        self._unread = b""
        self._news = asyncio.Event()  # for the reader
        self._room = asyncio.Event()  # for the writer
        self._over = asyncio.Event()  # for `receive`
        self.head = RequestHead(
            method,
            path,
            {
                "host": "localhost",
                "x-request-id": name,
                "content-type": "application/json",
                "content-length": str(len(body)),
            },
        )

    # the application's side

    async def receive(self) -> MutableMapping[str, Any]:
        """Return a piece of the body; later wait for the end of the connection or response."""
        if self.pieces and not self._over.is_set():
            seconds, piece = self.pieces.pop(0)
            if seconds:
                await asyncio.wait(
                    [over := asyncio.ensure_future(self._over.wait())], timeout=seconds
                )
                over.cancel()
            if not self._over.is_set():
                return {"type": "http.request", "body": piece, "more_body": bool(self.pieces)}
        await self._over.wait()
        return {"type": "http.disconnect"}

    async def begin(self, status: int, headers: Headers) -> None:
        """Accept the status line and the headers."""
        if self.is_closed:
            return
        if self.is_whole:
            raise ProtocolError("data was written after the end")
        if self.status is not None:
            raise ProtocolError("two status lines")
        self.status = status
        self.headers = {name.decode(): value.decode() for name, value in headers}

    async def write(self, part: bytes, *, more: bool) -> None:
        """Accept a part of the response; wait while too much is unread."""
        if self.is_closed:
            return
        if self.is_whole:
            raise ProtocolError("data was written after the end")
        while self.must_wait():
            self._room.clear()
            await self._room.wait()
            await asyncio.sleep(TURN_SECONDS)
        self.write_now(part)
        if not (more or self.is_closed):
            self.is_whole = True
            self._over.set()

    def must_wait(self) -> bool:
        """Return whether `write` would have to wait for the reader."""
        return len(self._unread) > self.high_water and not self.is_closed

    is_stalled = must_wait

    def write_now(self, body: bytes) -> None:
        """Accept a part of the body without waiting."""
        if self.is_closed:
            return
        if self.is_whole:
            raise ProtocolError("data was written after the end")
        if self.status is None:
            raise ProtocolError("a body without a status line")
        self._unread += body
        self.largest_write = max(self.largest_write, len(body))
        self.most_unread = max(self.most_unread, len(self._unread))
        self._news.set()

    def cut(self) -> None:
        """Close the connection for the server."""
        self.was_cut = True
        self.close()

    # the client's side

    def close(self) -> None:
        """Close the connection for either side."""
        self.is_closed = True
        for event in (self._news, self._room, self._over):
            event.set()

    async def read(self, pace: float, stalls_after: int | None = None) -> None:
        """Read every `pace` seconds to the end, or stop reading but stay connected."""
        num_reads = 0
        while True:
            await self._news.wait()
            self._news.clear()
            if num_reads == stalls_after:
                await self._until_closed()
            if self.is_closed:
                return
            self.received, self._unread = self.received + self._unread, b""
            self._room.set()
            num_reads += 1
            if self.is_whole:
                return
            if pace:
                await asyncio.sleep(pace)

    async def _until_closed(self) -> None:
        while not self.is_closed:
            await self._news.wait()
            self._news.clear()

    def frames(self) -> tuple[list[Any], bool]:
        """Return the payloads of a stream's frames, and whether its end marker arrived."""
        frames = self.received.decode().split("\n\n")
        rest = frames.pop()
        if self.is_whole and not self.is_closed and rest:
            raise ProtocolError(f"an incomplete frame at the end: {rest!r}")
        payloads = [each for each in frames if each != ": ping"]
        if not all(each.startswith("data: ") and "\n" not in each for each in payloads):
            raise ProtocolError(f"malformed frames: {payloads}")
        data = [each.removeprefix("data: ") for each in payloads]
        is_ended = bool(data) and data[-1] == "[DONE]"
        return [json.loads(each) for each in data if each != "[DONE]"], is_ended
