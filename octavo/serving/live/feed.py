"""The listeners of the live stream, and the task that makes each frame once for all of them.

Without a listener there is no task, and no engine is asked anything. A listener has at most the
frame that is being written and the newest one behind it: what it is too slow for is left out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from octavo.options.server import ServerSettings
from octavo.serving.live.schema import LiveEnded, LiveFrame
from octavo.serving.live.watch import ModelWatch
from octavo.transport.errors import ApiError, too_many, unavailable
from octavo.transport.exchange import encode

if TYPE_CHECKING:
    from octavo.observe.explain import Recent, Record
    from octavo.serving.server import Server

log = logging.getLogger(__name__)

FRAME_SECONDS = 0.5
LOOK_SECONDS = 0.2  # that a frame waits for the engines' look, which comes between two steps
LISTEN_SECONDS = 3600.0  # the longest stream; its client then comes again
RETRY_SECONDS = 5
MAX_REQUESTS = 256  # of a key in a frame
MAX_ENDED = 32


class Listener:
    """One client of the stream, with the newest frame that it has not got yet."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.end: Exception | None = None
        self._newest = b""
        self._news = asyncio.Event()

    def offer(self, frame: bytes) -> None:
        """Take a frame in place of one that was not sent."""
        self._newest = frame
        self._news.set()

    def stop(self, error: Exception) -> None:
        """End the stream, for this reason."""
        self.end = error
        self._news.set()

    async def next(self) -> bytes:
        """Return the newest frame when there is one; b"" at the end of the stream."""
        await self._news.wait()
        self._news.clear()
        return b"" if self.end is not None else self._newest


class LiveFeed:
    """The live stream of one server."""

    def __init__(
        self,
        servers: Callable[[], Sequence[Server]],
        recent: Recent,
        config: ServerSettings,
        version: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._servers = servers
        self._recent = recent
        self._version = version
        self._clock = clock
        self._began = clock()
        self._most = config.max_live_listeners
        # Where keys share a server, none may take all places, nor see what is another's.
        self._is_shared = len(config.api_keys) > 1
        self._watches: dict[Server, ModelWatch] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_over = False
        self.listeners: list[Listener] = []

    def join(self, owner: str) -> Listener:
        """Add a listener; raise ApiError if there are too many."""
        if not self._most:
            raise ApiError(
                404,
                "this server has no live stream (--max-live-listeners 0)",
                code="live_disabled",
            )
        if self._is_over:
            raise unavailable("another server takes the place of this one", "server_shutdown")
        own = sum(each.owner == owner for each in self.listeners)
        most = max(1, self._most // 2) if self._is_shared else self._most
        if len(self.listeners) >= self._most or own >= most:
            of_key = " with this key" if own >= most and self._is_shared else ""
            raise too_many(
                f"{own if of_key else len(self.listeners)} listen already{of_key}, of "
                f"{most if of_key else self._most} allowed; close one, or start the server with a "
                "larger --max-live-listeners",
                RETRY_SECONDS,
                "too_many_listeners",
            )
        listener = Listener(owner)
        self.listeners.append(listener)
        if self._task is None or self._task.done():  # it has failed, for others
            self._task = asyncio.get_running_loop().create_task(self._run())
        return listener

    def leave(self, listener: Listener) -> None:
        """Remove a listener; behind the last one, nothing is made any more."""
        self.listeners.remove(listener)
        if not self.listeners and self._task is not None:
            self._task.cancel()
            self._task = None
            self._watches.clear()

    def end(self) -> None:
        """End all streams, and begin none: they would keep a server that another replaces."""
        self._is_over = True
        for listener in self.listeners:
            listener.stop(unavailable("the server is replaced", "server_shutdown"))

    async def _run(self) -> None:
        try:
            while True:
                began = self._clock()
                await self._look()
                self._send(self._clock())
                await asyncio.sleep(max(FRAME_SECONDS / 2, began + FRAME_SECONDS - self._clock()))
        except Exception as error:
            log.exception("the live stream has failed")
            for listener in self.listeners:
                listener.stop(error)

    async def _look(self) -> None:
        """Let each engine report, and wait for those that do so soon."""
        self._watches = {
            server: self._watches.get(server) or ModelWatch(server) for server in self._servers()
        }
        asked = [eye.ask() for watch in self._watches.values() for eye in watch.eyes]
        due = [reply for reply in asked if reply is not None]
        if due:
            await asyncio.wait(due, timeout=LOOK_SECONDS)

    def _send(self, now: float) -> None:
        """Make a frame for each key that listens, and offer it to its listeners."""
        watches = list(self._watches.values())
        models = [each.take(now, is_shared=self._is_shared) for each in watches]
        frames: dict[str, bytes] = {}
        for listener in self.listeners:
            owner = listener.owner
            if owner not in frames:
                frame = self._frame(owner, now, watches)
                frame.models = models
                frames[owner] = b"data: %b\n\n" % encode(frame)
            listener.offer(frames[owner])

    def _frame(self, owner: str, now: float, watches: Sequence[ModelWatch]) -> LiveFrame:
        found = [
            request
            for watch in watches
            for request in watch.requests(owner, now, is_shared=self._is_shared)
        ]
        return LiveFrame(
            version=self._version,
            uptime_seconds=round(now - self._began, 3),
            listeners=len(self.listeners),
            is_shared=self._is_shared,
            models=[],
            requests=found[:MAX_REQUESTS],
            left_out=max(0, len(found) - MAX_REQUESTS),
            ended=[_ended(each) for each in islice(self._recent.ended_of(owner), MAX_ENDED)],
        )


def _ended(record: Record) -> LiveEnded:
    first, end = record.first_byte_at, record.ended_at or record.began
    return LiveEnded(
        id=record.request_id,
        outcome=record.outcome,
        total_ms=round(1000 * (end - record.began), 1),
        first_byte_ms=None if first is None else round(1000 * (first - record.began), 1),
        prompt_tokens=record.num_prompt_tokens,
        generated_tokens=record.num_output_tokens,
    )
