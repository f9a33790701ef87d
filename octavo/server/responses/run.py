"""A response that is answered without a connection: its events, and the clients that follow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from octavo.server.http.errors import ApiError
from octavo.server.http.exchange import Exchange
from octavo.server.http.stream import ResponseStream
from octavo.server.responses.dialect import error_fields, event

MOST_AT_ONCE = 64  # events that are written without a turn for others


class Run:
    """The events of one response; the number of an event is its place."""

    def __init__(self) -> None:
        self.stop: Callable[[Exception], None] = lambda why: None  # its task sets another
        self.frames: list[bytes] = []
        self.is_over = False
        self.task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    def add(self, part: bytes) -> None:
        """Add one event or several."""
        self.frames += split(part)
        self._wake()

    def end(self) -> None:
        """Let the followers leave: nothing follows."""
        self.is_over = True
        self._wake()

    async def news(self) -> None:
        """Wait until there is another event, or none will follow."""
        await self._news.wait()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


def split(part: bytes) -> list[bytes]:
    """Return the events in what was written; their JSON has no line breaks."""
    return [each + b"\n\n" for each in part.split(b"\n\n") if each]


async def follow(exchange: Exchange, run: Run, known: int) -> None:
    """Write the events behind the one that the client knows, until the last."""
    stream = ResponseStream(exchange, _failure)
    at = known + 1
    await stream.open()
    try:
        while True:
            news = run.news()
            frames = run.frames[at : at + MOST_AT_ONCE]
            if frames:
                news.close()
                at += len(frames)
                await stream.write(frames)
                await asyncio.sleep(0)
            elif run.is_over:
                news.close()
                break
            else:
                await news
        await stream.write((), more=False)
    finally:
        stream.stop_pinging()


def _failure(error: ApiError) -> bytes:
    """Return the event of an error of this connection alone."""
    return event("error", error_fields(error))
