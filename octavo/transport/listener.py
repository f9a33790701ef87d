"""A socket on which HTTP is served: its connections, the tasks of their requests, and its end."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from octavo.transport.connection import Connection
from octavo.transport.connections import Connections
from octavo.transport.middleware import ASGI
from octavo.transport.response import Response

log = logging.getLogger(__name__)

_BACKLOG = 2048
_TICK_SECONDS = 0.02
_GRACE_SECONDS = 1.0  # for connections and requests to end when the listener stops

# Accepts connections on a socket until it is cancelled, and makes a protocol for each.
Accept = Callable[[socket.socket, Callable[[], Connection]], Coroutine[Any, Any, None]]


class Listener:
    """One listening socket, with the tasks that answer the requests of its connections."""

    def __init__(
        self, connections: Connections, answer: Callable[[Response], Awaitable[None]]
    ) -> None:
        self._connections = connections
        self._answer = answer
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._listening: socket.socket | None = None

    async def start(self, listening: socket.socket, accept: Accept | None = None) -> None:
        """Accept connections from now on; `accept` does so instead of the event loop."""
        loop = asyncio.get_running_loop()
        self._listening = listening
        if accept is None:
            self._server = await loop.create_server(self._make, sock=listening, backlog=_BACKLOG)
        else:
            listening.listen(_BACKLOG)
            listening.setblocking(False)
            self._accepting = loop.create_task(accept(listening, self._make))

    async def adopt(self, connection: socket.socket) -> None:
        """Serve a connection that was accepted before there was a listener."""
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(self._make, connection)
        except OSError:  # its client has left
            connection.close()

    def leave(self) -> None:
        """Accept nothing more: another process does, on the same socket.

        A connection that waits for a request stays: its client may be sending one at this moment.
        """
        self._stop_accepting()
        self._connections.is_leaving = True
        for connection in self._connections.open:
            connection.leave()

    def _stop_accepting(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
        if self._server is not None:
            self._server.close()

    async def stop(self, is_hurried: Callable[[], bool]) -> None:
        """Accept nothing more; let responses that are due end, for a while."""
        self._stop_accepting()
        if self._accepting is not None:
            await asyncio.wait({self._accepting})
        if self._listening is not None:
            self._listening.close()
        for connection in list(self._connections.open):
            connection.shut_down()
        loop = asyncio.get_running_loop()
        until = loop.time() + _GRACE_SECONDS
        while (self._connections.open or self._tasks) and loop.time() < until and not is_hurried():
            await asyncio.sleep(_TICK_SECONDS)
        if self._tasks:
            log.info("requests that are cancelled: %d", len(self._tasks))
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
        for connection in list(self._connections.open):
            connection.transport.abort()

    def _make(self) -> Connection:
        return Connection(self._connections, self._begin)

    def _begin(self, response: Response) -> None:
        task = asyncio.get_running_loop().create_task(self._run(response))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, response: Response) -> None:
        """Answer a request; whatever the application does, the response ends."""
        try:
            await self._answer(response)
        except asyncio.CancelledError:
            response.cut()
        except Exception:
            log.exception("the application failed")
            await _end(response)
        else:
            if not (response.complete or response.disconnected or response.is_cut):
                log.error("the application has returned without an answer, or in the midst of one")
                await _end(response)


async def _end(response: Response) -> None:
    """End a response that its application has left, with a 500 if it has not begun."""
    if response.started:
        response.cut()
        return
    body = b"Internal Server Error"
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
    await response.begin(500, [*headers, (b"connection", b"close")])
    await response.write(body, more=False)


class Lifespan:
    """The beginning and the end of an ASGI application, of which it is notified if it listens."""

    def __init__(self, application: ASGI) -> None:
        self._application = application
        self._given: asyncio.Queue[str] = asyncio.Queue()
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> str | None:
        """Let the application start; return why it cannot, or None."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        answer = await self._ask("startup")
        if answer is not None and answer["type"] == "lifespan.startup.failed":
            return str(answer.get("message", "")) or "it did not say why"
        return None

    async def stop(self) -> None:
        """Let the application end."""
        if self._task is not None and not self._task.done():
            await self._ask("shutdown")

    async def _ask(self, what: str) -> Any:
        """Return the answer to an event; None from an application that takes none."""
        assert self._task is not None
        self._given.put_nowait(f"lifespan.{what}")
        answer = asyncio.ensure_future(self._answers.get())
        await asyncio.wait({answer, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        answer.cancel()
        return None

    async def _run(self) -> None:
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}

        async def receive() -> dict[str, Any]:
            return {"type": await self._given.get()}

        try:
            await self._application(scope, receive, self._answers.put)
        except Exception as error:
            log.debug("the application takes no lifespan events: %r", error)
