"""Starts a router, and stops it in order after a signal.

The first SIGTERM or SIGINT drains: readiness fails at once, new requests get a 503, and open ones
may finish within `drain_seconds`. A second signal skips the wait. The exit code is 0 in both cases.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable
from functools import partial

from octavo.dialects.common.dialect import OPENAI
from octavo.observe.collection import settle_memory
from octavo.observe.heap import keep_heap_small
from octavo.observe.loop_lag import LoopLag
from octavo.observe.output import discard_output
from octavo.options.route import RouteSettings
from octavo.options.transport import MIN_KEY_CHARACTERS
from octavo.route.pool import MAX_IDLE
from octavo.route.router import Router
from octavo.route.routes import admin_application, application
from octavo.transport.app import Application
from octavo.transport.connection import Connection
from octavo.transport.connections import Connections
from octavo.transport.errors import unavailable
from octavo.transport.listener import Accept, Listener
from octavo.transport.sockets import bind, bind_admin, descriptors_for
from octavo.transport.tls import Certificates, accept_securely

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_TICK_SECONDS = 0.02
_END_TICKS = 100  # to wait for the last parts to be written


class RouterLifecycle:
    """The sockets and the shutdown of one router."""

    def __init__(self, router: Router, *, handles_signals: bool = True) -> None:
        self._signals = SIGNALS if handles_signals else ()
        self.router = router
        self.config = router.config
        self._ending = asyncio.Event()
        self._hurry = asyncio.Event()
        self._listeners: list[Listener] = []
        num_beside = self.config.max_open_requests + len(router.upstreams) * (MAX_IDLE + 1)
        self._connections = self._make_connections(descriptors_for(self.config, num_beside))
        router.metrics.num_connections = lambda: self._connections.num_open
        self._certificates = Certificates(self.config) if self.config.ssl_certfile else None
        self._loop_lag = LoopLag(router.metrics.loop_lag.observe)
        self.port = 0

    async def run(self, on_ready: Callable[[RouterLifecycle], None] | None = None) -> None:
        """Serve until `end` is called."""
        config, loop = self.config, asyncio.get_running_loop()
        listening = bind(config)
        self.port = listening.getsockname()[1] if config.uds is None else 0
        admin = None if config.admin_socket is None else bind_admin(config.admin_socket)
        watches = [loop.create_task(keep_heap_small())]
        if self._certificates is not None:
            watches.append(loop.create_task(self._certificates.watch()))
        for number in self._signals:
            loop.add_signal_handler(number, self.end)
        self._loop_lag.start()
        try:
            await self.router.start()
            await self._listen(application(self.router), listening, self._connections)
            if admin is not None:
                connections = self._make_connections(None)
                await self._listen(admin_application(self.router), admin, connections)
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
            self._loop_lag.stop()
            listening.close()

    def end(self) -> None:
        """Drain at the first call, and stop at once at the second; the handler of signals."""
        if self._ending.is_set():
            self._hurry.set()
        self.router.drain()
        self._ending.set()

    def _make_connections(self, max_connections: int | None) -> Connections:
        metrics, error_body = self.router.metrics, OPENAI.error_body
        return Connections(self.config, metrics, error_body, max_connections=max_connections)

    async def _listen(
        self, inner: Application, listening: socket.socket, connections: Connections
    ) -> None:
        accept: Accept | None = None
        if self._certificates is not None and connections is self._connections:
            accept = partial(self._accept_securely, self._certificates)
        listener = Listener(connections, inner.serve)
        self._listeners.append(listener)
        await listener.start(listening, accept)

    async def _accept_securely(
        self, certificates: Certificates, listening: socket.socket, make: Callable[[], Connection]
    ) -> None:
        await accept_securely(listening, self._connections, certificates, make)

    async def _drain(self) -> None:
        """Wait until all requests ended, `drain_seconds` passed or a second signal came."""
        router, seconds = self.router, self.config.drain_seconds
        log.info(
            "draining; open requests: %d, which end within %g s, or at a second signal",
            *(router.places.num_open, seconds),
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while router.places.num_open and not self._hurry.is_set():
                    await asyncio.sleep(_TICK_SECONDS)
        error = unavailable("the router is shutting down", "server_shutdown")
        for task in list(router.active):
            task.stop(error)
        for _ in range(_END_TICKS):
            if not router.active:
                break
            await asyncio.sleep(_TICK_SECONDS)

    async def _close(self) -> None:
        for place in list(self._connections.handshakes):
            place.close()
        await asyncio.gather(*(each.stop(self._hurry.is_set) for each in self._listeners))
        await self.router.close()
        for path in (self.config.uds, self.config.admin_socket):
            if path is not None:
                path.unlink(missing_ok=True)


def run(config: RouteSettings, on_ready: Callable[[RouterLifecycle], None]) -> int:
    """Route until a signal ends it; return the exit code of the process."""

    if config.has_short_key:
        log.warning(
            "an API key has fewer than %d characters: it can be guessed", MIN_KEY_CHARACTERS
        )

    async def main() -> None:
        settle_memory()
        await RouterLifecycle(Router(config)).run(on_ready)

    import uvloop

    try:
        uvloop.run(main())
    finally:
        discard_output()
    return 0
