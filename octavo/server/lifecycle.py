"""Starts the server with its engine's models, and stops it in order after a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from octavo.api.async_llm import AsyncLLM
from octavo.options.server import ServerSettings
from octavo.options.transport import ServerStartError
from octavo.server.admin.routes import ADMIN_ROUTES
from octavo.server.application import application
from octavo.server.ready_text import ready_text
from octavo.server.routes import DEFAULT_DIALECT
from octavo.server.site import OneModel, Site
from octavo.serving.server import Server
from octavo.transport.app import Application
from octavo.transport.lifecycle import Lifecycle, run_to_end
from octavo.transport.listener import Lifespan
from octavo.transport.middleware import wrap
from octavo.transport.response import Response
from octavo.transport.restart.waiting_room import WaitingRoom
from octavo.transport.sockets import descriptors_for, grpc_connections
from octavo.transport.tls import HTTP2, Certificates
from octavo.workers.process import Worker

if TYPE_CHECKING:
    from octavo.dialects.grpc.service import GrpcServer

log = logging.getLogger(__name__)

NUM_THREADS = 2  # for what would hold the event loop: files, compression; they live to the end


class ServerLifecycle(Lifecycle):
    """The sockets and the shutdown of one server."""

    noun = "server"

    def __init__(
        self, site: Site, *, handles_signals: bool = True, room: WaitingRoom | None = None
    ) -> None:
        most, error_body = descriptors_for(site.config), DEFAULT_DIALECT.error_body
        super().__init__(site, error_body, most, handles_signals=handles_signals, room=room)
        self.site = site
        self.config = site.config
        self._lifespan: Lifespan | None = None
        self._grpc_certificates: Certificates | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.grpc: GrpcServer | None = None

    @property
    def server(self) -> Server:
        """The server of the only model; a site of several has one for each that was used."""
        assert isinstance(self.site, OneModel), "there are several models"
        return self.site.server

    def end_from_outside(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self.end)

    def _open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(NUM_THREADS, "octavo"))
        if self.config.grpc_port is not None:
            self.grpc = self._make_grpc()
        self._answer = self._wrapped(self.site.application())
        self.site.open()

    async def _start(self, listening: socket.socket, admin: socket.socket | None) -> None:
        self.site.attach()  # so that it is well before the first request
        await self.site.start()
        await self._begin_lifespan()
        await self._listen(self._answer, listening)
        if admin is not None:
            answer = application(self.server, ADMIN_ROUTES, checks_access=False).serve
            await self._listen_to_operators(answer, admin)
        await self.site.begin()
        if self.grpc is not None:
            await self.grpc.start()

    async def _close(self) -> None:
        if self.grpc is not None:
            await self.grpc.stop()
        await self._stop_listening()
        if self._lifespan is not None:
            await self._lifespan.stop()
        await self.site.close()

    def _watches(self) -> list[Coroutine[Any, Any, None]]:
        watches = super()._watches()
        if self._grpc_certificates is not None:
            watches.append(self._grpc_certificates.watch())
        return watches

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


def run(
    config: ServerSettings,
    engine: AsyncLLM,
    on_ready: Callable[[ServerLifecycle], None] | None = None,
    workers: Sequence[Worker] = (),
    room: WaitingRoom | None = None,
) -> int:
    """Serve one model until a signal ends the server; return the exit code of the process.

    `workers` are prompt workers that have been launched already, and in the `room` clients wait.
    """

    def make() -> OneModel:
        return OneModel(Server(engine, config, workers=workers))

    return run_site(config, make, on_ready or _say_ready, room)


def run_site(
    config: ServerSettings,
    make: Callable[[], Site],
    on_ready: Callable[[ServerLifecycle], None],
    room: WaitingRoom | None = None,
) -> int:
    """Serve what is made in the event loop, until a signal ends it; return the exit code."""
    return run_to_end(config, lambda: ServerLifecycle(make(), room=room).run(on_ready))


def _say_ready(life: ServerLifecycle) -> None:
    tasks = life.server.llm.facts.pooling.tasks
    with contextlib.suppress(OSError):  # a closed pipe or a full disk must not stop it
        sys.stdout.write(ready_text(life.config, life.port, life.server.model_name, tasks))
        sys.stdout.flush()
