"""Starts the server, and stops it in order after a signal.

The first SIGTERM or SIGINT drains: readiness fails at once, new requests get a 503, and running
ones may finish within `drain_seconds`. After that they end with the error `server_shutdown`. A
second signal skips the wait. The exit code is 0 in both cases.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from octavo.api.async_llm import AsyncLLM
from octavo.observe.collection import settle_memory
from octavo.observe.heap import keep_heap_small
from octavo.observe.output import discard_output
from octavo.options.server import ServerSettings
from octavo.options.transport import MIN_KEY_CHARACTERS, ServerStartError
from octavo.server.admin.routes import ADMIN_ROUTES
from octavo.server.application import application
from octavo.server.ready_text import ready_text
from octavo.server.routes import DEFAULT_DIALECT
from octavo.server.site import OneModel, Site
from octavo.serving.server import Server
from octavo.transport.app import Application
from octavo.transport.connection import Connection
from octavo.transport.connections import Connections
from octavo.transport.errors import unavailable
from octavo.transport.listener import Accept, Lifespan, Listener
from octavo.transport.middleware import wrap
from octavo.transport.response import Response
from octavo.transport.sockets import bind, bind_admin, descriptors_for, grpc_connections
from octavo.transport.tls import HTTP2, Certificates, accept_securely
from octavo.workers.process import Worker

if TYPE_CHECKING:
    from octavo.dialects.grpc.service import GrpcServer

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_TICK_SECONDS = 0.02
_END_TICKS = 100  # to wait for the last frames to be written
NUM_THREADS = 2  # for what would hold the event loop: files, compression; they live to the end


class ServerLifecycle:
    """The sockets and the shutdown of one server."""

    def __init__(self, site: Site, *, handles_signals: bool = True) -> None:
        self._signals = SIGNALS if handles_signals else ()
        self.site = site
        self.config = site.config
        self._ending = asyncio.Event()
        self._hurry = asyncio.Event()
        self._listeners: list[Listener] = []
        self._lifespan: Lifespan | None = None
        self._connections = self._make_connections(max_connections=descriptors_for(self.config))
        site.metrics.num_connections = lambda: self._connections.num_open
        self._certificates = Certificates(self.config) if self.config.ssl_certfile else None
        self._grpc_certificates: Certificates | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.port = 0
        self.grpc: GrpcServer | None = None

    async def run(self, on_ready: Callable[[ServerLifecycle], None] | None = None) -> None:
        """Serve until `end` is called."""
        if self.config.grpc_port is not None:
            self.grpc = self._make_grpc()
        answer = self._wrapped(self.site.application())
        self.site.open()
        main_socket = bind(self.config)
        self.port = main_socket.getsockname()[1] if self.config.uds is None else 0
        self._loop = loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(NUM_THREADS, "octavo"))
        self.site.attach()  # so that it is well before the first request
        self.site.loop_lag.start()
        accept: Accept | None = None
        if self._certificates is not None:
            accept = partial(self._accept_securely, self._certificates)
        admin_socket = self.config.admin_socket
        listening = None if admin_socket is None else bind_admin(admin_socket)
        found = (self._certificates, self._grpc_certificates)
        watches = [loop.create_task(each.watch()) for each in found if each is not None]
        watches.append(loop.create_task(keep_heap_small()))
        for number in self._signals:
            loop.add_signal_handler(number, self.end)
        try:
            await self.site.start()
            await self._begin_lifespan()
            await self._listen(answer, main_socket, self._connections, accept)
            if listening is not None:
                admin = application(self.server, ADMIN_ROUTES, checks_access=False)
                await self._listen(admin.serve, listening, self._make_connections())
            await self.site.begin()
            if self.grpc is not None:
                await self.grpc.start()
            if on_ready is not None:
                on_ready(self)
            await self._ending.wait()
            await self._drain()
        finally:
            for number in self._signals:
                loop.remove_signal_handler(number)
            for watch in watches:
                watch.cancel()
            await self._close()
            self.site.loop_lag.stop()
            main_socket.close()

    def end(self) -> None:
        """Drain at the first call, and stop at once at the second; the handler of signals."""
        if self._ending.is_set():
            self._hurry.set()
        self.site.drain()
        self._ending.set()

    @property
    def server(self) -> Server:
        """The server of the only model; a site of several has one for each that was used."""
        assert isinstance(self.site, OneModel), "there are several models"
        return self.site.server

    @property
    def num_connections(self) -> int:
        """The number of open connections of clients, without operators'."""
        return self._connections.num_open

    def end_from_outside(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self.end)

    def _make_grpc(self) -> GrpcServer:
        from octavo.dialects.grpc.dialect import GRPC
        from octavo.dialects.grpc.routes import GRPC_ROUTES
        from octavo.dialects.grpc.service import GrpcServer

        if self.config.ssl_certfile is not None:
            self._grpc_certificates = Certificates(self.config, HTTP2)
        most = grpc_connections(self._connections.max_connections)
        of_client = grpc_connections(self.config.max_connections_per_client)
        connections = self._make_connections(
            max_connections=most, max_per_client=min(of_client, max(1, most // 2))
        )
        calls = application(self.server, GRPC_ROUTES, GRPC)
        return GrpcServer(self.server, calls, connections, self._grpc_certificates)

    def _make_connections(self, **options: Any) -> Connections:
        error_body = DEFAULT_DIALECT.error_body
        return Connections(self.config, self.site.metrics, error_body, **options)

    async def _accept_securely(
        self, certificates: Certificates, listening: socket.socket, make: Callable[[], Connection]
    ) -> None:
        await accept_securely(listening, self._connections, certificates, make)

    def _wrapped(self, inner: Application) -> Callable[[Response], Awaitable[None]]:
        """Return what answers requests: the application, or the outermost of its middlewares."""
        if not self.config.middleware:
            return inner.serve
        outer = wrap(inner, self.config.middleware)
        self._lifespan = Lifespan(outer)

        async def answer(response: Response) -> None:
            await outer(response.scope(), response.receive, response.send)

        return answer

    async def _begin_lifespan(self) -> None:
        why = None if self._lifespan is None else await self._lifespan.start()
        if why is not None:
            log.error("a middleware could not start: %s", why)
            raise ServerStartError("a middleware could not start; the log has its reason")

    async def _listen(
        self,
        answer: Callable[[Response], Awaitable[None]],
        listening: socket.socket,
        connections: Connections,
        accept: Accept | None = None,
    ) -> None:
        listener = Listener(connections, answer)
        self._listeners.append(listener)
        await listener.start(listening, accept)

    async def _drain(self) -> None:
        """Wait until all requests ended, `drain_seconds` passed or a second signal came."""
        log.info(
            "draining; open requests: %d, which end within %g s, or at a second signal",
            self.site.num_open,
            self.config.drain_seconds,
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.drain_seconds):
                await self._first_of(self._idle(), self._hurry.wait())
        error = unavailable("the server is shutting down", "server_shutdown")
        for request in self.site.active():
            request.stop(error)
        for _ in range(_END_TICKS):
            if not self.site.active():
                break
            await asyncio.sleep(_TICK_SECONDS)

    async def _idle(self) -> None:
        while self.site.num_open:
            await asyncio.sleep(_TICK_SECONDS)

    async def _first_of(self, *waits: Awaitable[object]) -> None:
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def _close(self) -> None:
        if self.grpc is not None:
            await self.grpc.stop()
        for place in list(self._connections.handshakes):
            place.close()
        await asyncio.gather(*(each.stop(self._hurry.is_set) for each in self._listeners))
        if self._lifespan is not None:
            await self._lifespan.stop()
        await self.site.close()
        for path in (self.config.uds, self.config.admin_socket):
            if path is not None:
                path.unlink(missing_ok=True)


def run(
    config: ServerSettings,
    engine: AsyncLLM,
    on_ready: Callable[[ServerLifecycle], None] | None = None,
    workers: Sequence[Worker] = (),
) -> int:
    """Serve one model until a signal ends the server; return the exit code of the process.

    `workers` are prompt workers that have been launched already.
    """
    return run_site(
        config, lambda: OneModel(Server(engine, config, workers=workers)), on_ready or _say_ready
    )


def run_site(
    config: ServerSettings,
    make: Callable[[], Site],
    on_ready: Callable[[ServerLifecycle], None],
) -> int:
    """Serve what is made in the event loop, until a signal ends it; return the exit code."""
    if config.has_short_key:
        log.warning(
            "an API key has fewer than %d characters and can be guessed; it is accepted because "
            "only this machine can connect",
            MIN_KEY_CHARACTERS,
        )

    async def main() -> None:
        settle_memory()
        await ServerLifecycle(make()).run(on_ready)

    import uvloop

    try:
        uvloop.run(main())
    finally:
        discard_output()
    return 0


def _say_ready(life: ServerLifecycle) -> None:
    tasks = life.server.llm.facts.pooling.tasks
    with contextlib.suppress(OSError):  # a closed pipe or a full disk must not stop it
        sys.stdout.write(ready_text(life.config, life.port, life.server.model_name, tasks))
        sys.stdout.flush()
