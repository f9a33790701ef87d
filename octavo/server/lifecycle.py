"""Starts the server, and stops it in order after a signal.

The first SIGTERM or SIGINT drains: readiness fails at once, new requests get a 503, and running
ones may finish within `drain_seconds`. After that they end with the error `server_shutdown`. A
second signal skips the wait. The exit code is 0 in both cases.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn

from octavo.api.async_llm import AsyncLLM
from octavo.observe.heap import give_large_blocks_back
from octavo.server.admin.routes import ADMIN_ROUTES
from octavo.server.batches.calls import Calls
from octavo.server.batches.service import Batches
from octavo.server.batches.store import Store
from octavo.server.durable.service import Durability
from octavo.server.http.app import Application
from octavo.server.http.connection import bounded_protocol
from octavo.server.http.connections import Connections
from octavo.server.http.errors import unavailable
from octavo.server.http.middleware import ASGI, wrap
from octavo.server.http.sockets import bind, bind_admin, descriptors_for, grpc_connections
from octavo.server.http.tls import HTTP2, Certificates, accept_securely
from octavo.server.ready_text import ready_text
from octavo.server.responses.background import recover
from octavo.server.routes import DEFAULT_DIALECT, served
from octavo.server.server import Server
from octavo.server.settings import MIN_KEY_CHARACTERS, ServerSettings, ServerStartError
from octavo.server.worker_process import Worker

if TYPE_CHECKING:
    from octavo.server.grpc.service import GrpcServer

log = logging.getLogger(__name__)

Accept = Callable[[socket.socket, Any], Coroutine[Any, Any, None]]

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_TICK_SECONDS = 0.02
_END_TICKS = 100  # to wait for the last frames to be written
_BACKLOG = 2048
NUM_THREADS = 2  # for what would hold the event loop: files, compression; they live to the end
_GC_THRESHOLDS = (10_000, 20, 100)  # between two collections of each generation


class _Listener(uvicorn.Server):
    """A uvicorn server that leaves signals to ServerLifecycle, and TLS to `accept`."""

    def __init__(self, config: uvicorn.Config, accept: Accept | None = None) -> None:
        super().__init__(config)
        self._accept = accept
        self._accepting: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets if self._accept is None else [])
        except SystemExit:  # uvicorn's way to report a failed lifespan.startup
            raise ServerStartError("a middleware could not start; the log has its reason") from None
        if self._accept is not None and sockets:
            protocol: Any = self.config.http_protocol_class
            make = partial(
                protocol,
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
            )
            sockets[0].listen(self.config.backlog)
            sockets[0].setblocking(False)
            accepting = self._accept(sockets[0], make)
            self._accepting = asyncio.get_running_loop().create_task(accepting)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait({self._accepting})
        await super().shutdown(sockets)


class ServerLifecycle:
    """The sockets and the shutdown of one server."""

    def __init__(self, server: Server, *, handles_signals: bool = True) -> None:
        self._signals = SIGNALS if handles_signals else ()
        self.server = server
        self.config = server.config
        self._ending = asyncio.Event()
        self._hurry = asyncio.Event()
        self._listeners: list[_Listener] = []
        self._connections = self._make_connections(
            max_connections=descriptors_for(self.config),
            writes_directly=not self.config.middleware,
        )
        server.metrics.num_connections = lambda: self._connections.num_open
        self._certificates = Certificates(self.config) if self.config.ssl_certfile else None
        self._grpc_certificates: Certificates | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.port = 0
        self.grpc: GrpcServer | None = None

    async def run(self, on_ready: Callable[[ServerLifecycle], None] | None = None) -> None:
        """Serve until `end` is called."""
        if self.config.grpc_port is not None:
            self.grpc = self._make_grpc()
        application = wrap(Application(self.server), self.config.middleware)
        if self.config.journal is not None:
            self.server.durability = Durability.open(self.server)
        if self.config.batch_dir is not None:
            store = Store(self.config.batch_dir)
            calls = Calls(self.server, served(self.config), DEFAULT_DIALECT)
            self.server.batches = Batches(self.server, store, calls)
        main_socket = bind(self.config)
        self.port = main_socket.getsockname()[1] if self.config.uds is None else 0
        self._loop = loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(NUM_THREADS, "octavo"))
        self.server.llm.attach()  # so that it is well before the first request
        self.server.loop_lag.start()
        accept: Accept | None = None
        if self._certificates is not None:
            accept = partial(self._accept_securely, self._certificates)
        tasks = [self._listen(application, main_socket, self._connections, accept)]
        if self.config.admin_socket is not None:
            admin = Application(self.server, ADMIN_ROUTES, checks_access=False)
            listening = bind_admin(self.config.admin_socket)
            tasks.append(self._listen(admin, listening, self._make_connections()))
        found = (self._certificates, self._grpc_certificates)
        watches = [loop.create_task(each.watch()) for each in found if each is not None]
        for number in self._signals:
            loop.add_signal_handler(number, self.end)
        try:
            await self.server.prompt_pool.start()
            while not all(listener.started for listener in self._listeners):
                for task in tasks:
                    if task.done():
                        await task  # raises its error
                await asyncio.sleep(0.005)
            if self.server.durability is not None:
                self.server.durability.start()
            await recover(self.server)
            if self.grpc is not None:
                await self.grpc.start()
            if self.server.batches is not None:
                self.server.batches.start()
            if on_ready is not None:
                on_ready(self)
            await self._ending.wait()
            await self._drain()
        finally:
            for number in self._signals:
                loop.remove_signal_handler(number)
            for watch in watches:
                watch.cancel()
            await self._close(tasks)
            self.server.loop_lag.stop()
            main_socket.close()

    def end(self) -> None:
        """Drain at the first call, and stop at once at the second; the handler of signals."""
        if self._ending.is_set():
            self._hurry.set()
        self.server.is_draining = True
        self._ending.set()

    @property
    def num_connections(self) -> int:
        """The number of open connections of clients, without operators'."""
        return self._connections.num_open

    def end_from_outside(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self.end)

    def _make_grpc(self) -> GrpcServer:
        from octavo.server.grpc.service import GrpcServer

        if self.config.ssl_certfile is not None:
            self._grpc_certificates = Certificates(self.config, HTTP2)
        most = grpc_connections(self._connections.max_connections)
        of_client = grpc_connections(self.config.max_connections_per_client)
        connections = self._make_connections(
            max_connections=most, max_per_client=min(of_client, max(1, most // 2))
        )
        return GrpcServer(self.server, connections, self._grpc_certificates)

    def _make_connections(self, **options: Any) -> Connections:
        error_body = DEFAULT_DIALECT.error_body
        return Connections(self.config, self.server.metrics, error_body, **options)

    async def _accept_securely(
        self, certificates: Certificates, listening: socket.socket, make: Any
    ) -> None:
        await accept_securely(listening, self._connections, certificates, make)

    def _listen(
        self,
        application: ASGI,
        listening: socket.socket,
        connections: Connections,
        accept: Accept | None = None,
    ) -> asyncio.Task[None]:
        config = uvicorn.Config(
            application,
            http=bounded_protocol(connections),
            ws="none",
            lifespan="auto" if self.config.middleware else "off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=int(self.config.idle_seconds),
            timeout_graceful_shutdown=1,
            backlog=_BACKLOG,
        )
        listener = _Listener(config, accept)
        self._listeners.append(listener)
        return asyncio.get_running_loop().create_task(listener.serve([listening]))

    async def _drain(self) -> None:
        """Wait until all requests ended, `drain_seconds` passed or a second signal came."""
        log.info(
            "draining; open requests: %d, which end within %g s, or at a second signal",
            self.server.admission.num_open,
            self.config.drain_seconds,
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.drain_seconds):
                await self._first_of(self._idle(), self._hurry.wait())
        error = unavailable("the server is shutting down", "server_shutdown")
        for request in list(self.server.active.values()):
            request.stop(error)
        for _ in range(_END_TICKS):
            if not self.server.active:
                break
            await asyncio.sleep(_TICK_SECONDS)

    async def _idle(self) -> None:
        while self.server.admission.num_open:
            await asyncio.sleep(_TICK_SECONDS)

    async def _first_of(self, *waits: Awaitable[object]) -> None:
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def _close(self, tasks: list[asyncio.Task[None]]) -> None:
        if self.grpc is not None:
            await self.grpc.stop()
        for listener in self._listeners:
            listener.should_exit = True
            listener.force_exit = self._hurry.is_set()
        for place in list(self._connections.handshakes):
            place.close()
        await asyncio.wait(tasks)
        if self.server.batches is not None:
            await self.server.batches.close()
        await self.server.releases.finish()
        await self.server.responses.close()
        if self.server.durability is not None:
            await self.server.durability.close()
        await self.server.prompt_pool.close()
        for path in (self.config.uds, self.config.admin_socket):
            if path is not None:
                path.unlink(missing_ok=True)


def run(
    config: ServerSettings,
    engine: AsyncLLM,
    on_ready: Callable[[ServerLifecycle], None] | None = None,
    workers: Sequence[Worker] = (),
) -> int:
    """Serve until a signal ends the server; return the exit code of the process.

    `workers` are prompt workers that have been launched already.
    """

    if config.has_short_key:
        log.warning(
            "an API key has fewer than %d characters and can be guessed; it is accepted because "
            "only this machine can connect",
            MIN_KEY_CHARACTERS,
        )

    async def main() -> None:
        settle_memory()
        await ServerLifecycle(Server(engine, config, workers=workers)).run(on_ready or _say_ready)

    import uvloop

    try:
        uvloop.run(main())
    finally:
        _discard_output()
    return 0


def settle_memory() -> None:
    """Keep the objects made so far out of garbage collection, and make collections rare.

    Large blocks are given back when they are freed, since bodies of clients may be large.

    Objects of the start-up stay alive, and need not be traversed while clients wait. By default
    Python collects every 700 objects, which is every few tokens.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    give_large_blocks_back()


def _say_ready(life: ServerLifecycle) -> None:
    tasks = life.server.llm.facts.pooling.tasks
    with contextlib.suppress(OSError):  # a closed pipe or a full disk must not stop it
        sys.stdout.write(ready_text(life.config, life.port, life.server.model_name, tasks))
        sys.stdout.flush()


def _discard_output() -> None:
    """Drop output that cannot be written, on which the interpreter would fail at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, stream.fileno())
            os.close(devnull)
