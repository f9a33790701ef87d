"""A replica: a server with its engines, which answers what a front passes to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    MutableMapping,
)
from typing import Any

from octavo.api.async_llm import AsyncLLM
from octavo.observe.metrics import usage
from octavo.serve_ray.passed import OPEN, Head, Passed
from octavo.serve_ray.scaling import KV_USE
from octavo.serve_ray.settings import read
from octavo.server.site import OneModel
from octavo.serving.server import Server
from octavo.transport.answer import Receive, Scope, Send

HIGH_BYTES = 256 << 10  # of an answer that were not taken, before the server waits
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]
END_SECONDS = 5.0  # for the server to let go of a request whose front has left


class Engine:
    """A server without sockets of its own."""

    # Ray Serve awaits it; a coroutine is no constructor otherwise.
    async def __init__(self, arguments: Mapping[str, Any]) -> None:  # type: ignore[misc]
        settings = read(arguments).serve
        self._llm = await asyncio.to_thread(
            AsyncLLM,
            settings.engine.model,
            engine="process",
            timing=settings.timing,
            **settings.options,
        )
        try:
            self._site = OneModel(Server(self._llm, settings.server))
            self._application = self._site.application()
            self._site.open()
            self._site.attach()
            await self._site.start()
            await self._site.begin()
        except BaseException:
            self._llm.close()
            raise

    async def answer(self, passed: Passed) -> AsyncIterator[Head | bytes]:
        """Yield the head of the answer to a request, and then its body, part by part."""
        async with contextlib.aclosing(answered(self._application, passed)) as parts:
            async for part in parts:
                yield part

    async def check_health(self) -> None:
        """Raise an error if there will be no engine any more; Ray Serve then starts another.

        An engine that is started again is no reason: its requests wait for it here.
        """
        if self._llm.death is not None:
            raise RuntimeError(f"the engine has ended: {self._llm.death}")

    def record_routing_stats(self) -> dict[str, int]:
        """Return what the request router wants to know."""
        return {OPEN: self._site.num_open}

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return what the policy of autoscaling wants to know, beside open requests."""
        return {KV_USE: usage(self._llm.snapshot())}

    async def __del__(self) -> None:  # Ray Serve awaits it, when the requests have ended
        site = getattr(self, "_site", None)
        if site is not None:
            site.drain()
            with contextlib.suppress(Exception):
                await site.close()
            await asyncio.to_thread(self._llm.close)


async def answered(application: Asgi, passed: Passed) -> AsyncGenerator[Head | bytes, None]:
    """Yield what an application answers; it sees a client that leaves when this is closed."""
    call = _Call(passed)
    work = asyncio.ensure_future(application(call.scope(), call.receive, call.send))
    work.add_done_callback(lambda _: call.note_end())
    try:
        while (item := await call.take()) is not None:
            yield item
    finally:
        call.leave()
        if not work.done():
            await asyncio.wait({work}, timeout=END_SECONDS)
            work.cancel()


class AnswerBrokenError(RuntimeError):
    """An answer that the server has cut before its end."""


class _Call:
    """One request to the application, as ASGI describes it, and its answer until it is taken."""

    def __init__(self, passed: Passed) -> None:
        self._passed = passed
        self._head: Head | None = None
        self._parts: list[bytes] = []
        self._num_bytes = 0
        self._is_whole = self._has_ended = self._is_read = False
        self._news, self._room, self._has_left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def scope(self) -> dict[str, Any]:
        """Return the scope of the request."""
        passed = self._passed
        return {
            "type": "http",
            "http_version": "1.1",
            "method": passed.method,
            "path": passed.path,
            "query_string": passed.query.encode("latin-1"),
            "headers": passed.headers,
            "extensions": {"octavo.cut": {"call": self._news.set}},
        }

    async def receive(self) -> MutableMapping[str, Any]:
        """Return the whole body, and then that the client has left, once it has."""
        if not self._is_read:
            self._is_read = True
            body, self._passed = self._passed.body, self._passed._replace(body=b"")
            return {"type": "http.request", "body": body, "more_body": False}
        await self._has_left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Keep a part of the answer, and wait until there is room for the next."""
        if message["type"] == "http.response.start":
            self._head = Head(message["status"], [*message["headers"]])
            return
        part = message.get("body", b"")
        if part:
            self._parts.append(part)
            self._num_bytes += len(part)
        self._is_whole = not message.get("more_body", False)
        self._news.set()
        while self._num_bytes > HIGH_BYTES and not self._has_left.is_set():
            self._room.clear()
            await self._room.wait()

    async def take(self) -> Head | bytes | None:
        """Return the head first, then what has come of the body, and None at its end."""
        while True:
            if self._head is not None and (self._parts or self._is_whole):
                head, self._head = self._head, None
                return head
            if self._parts:
                found = b"".join(self._parts)
                self._parts, self._num_bytes = [], 0
                self._room.set()
                return found
            if self._is_whole:
                return None
            if self._has_ended:
                raise AnswerBrokenError("the server has ended its answer before it was whole")
            self._news.clear()
            await self._news.wait()

    def note_end(self) -> None:
        """Note that the application does nothing more for the request."""
        self._has_ended = True
        self._news.set()

    def leave(self) -> None:
        """Let the application see that its client has left."""
        self._has_left.set()
        self._room.set()
