"""The sockets of a service from its start to its end, for which a signal asks.

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
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, ClassVar, Protocol, Self

from octavo.observe.collection import settle_memory
from octavo.observe.heap import keep_heap_small
from octavo.observe.http_metrics import HttpMetrics
from octavo.observe.loop_lag import LoopLag
from octavo.observe.output import discard_output, leave_at_once
from octavo.options.transport import (
    MIN_KEY_CHARACTERS,
    ServerStartError,
    TransportSettings,
)
from octavo.transport.connection import Connection
from octavo.transport.connections import Connections
from octavo.transport.errors import ApiError, unavailable
from octavo.transport.listener import Listener
from octavo.transport.response import Response
from octavo.transport.restart.given import Given, given_socket
from octavo.transport.restart.handover import Offer, take_over
from octavo.transport.restart.systemd import Notifier
from octavo.transport.restart.waiting_room import WaitingRoom
from octavo.transport.sockets import beside, bind, bind_admin, bind_beside, put_in_place
from octavo.transport.tls import Certificates, accept_securely

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SIGNALLED = 128  # and the signal: the exit code of a process that it ends
_TICK_SECONDS = 0.02
_END_TICKS = 100  # to wait for the last parts to be written


class Stoppable(Protocol):
    """A request that is being answered."""

    @property
    def stop(self) -> Callable[[Exception], None]:
        """End it now, with this error."""


class Service(Protocol):
    """A server or router, as its lifecycle sees it."""

    @property
    def config(self) -> TransportSettings:
        """The addresses, limits and times of its connections."""

    @property
    def metrics(self) -> HttpMetrics:
        """The metrics that connections count on."""

    @property
    def num_open(self) -> int:
        """The number of requests that have come and have not left."""

    def drain(self) -> None:
        """Refuse new requests from now on."""

    def leave(self) -> None:
        """End what lasts as long as the server: another one takes its place."""

    @property
    def has_failed(self) -> bool:
        """True if it can answer no request any more until it is started again."""

    def active(self) -> Collection[Stoppable]:
        """Return the requests that are being answered."""


class Lifecycle(ABC):
    """The sockets and the shutdown of one service."""

    noun: ClassVar[str]  # what an error says that is shutting down

    def __init__(
        self,
        service: Service,
        error_body: Callable[[ApiError], bytes],
        max_connections: int,
        *,
        handles_signals: bool,
        room: WaitingRoom | None = None,
    ) -> None:
        self._room = room  # where clients wait already
        self._signals = SIGNALS if handles_signals else ()
        self._service = service
        self._error_body = error_body
        self._ending = asyncio.Event()
        self._hurry = asyncio.Event()
        self._is_closing = False  # nothing is answered any more
        self._listeners: list[Listener] = []
        self._clients: Listener | None = None
        self._connections = self._make_connections(max_connections=max_connections)
        service.metrics.num_connections = lambda: self._connections.num_open
        is_secure = service.config.ssl_certfile is not None
        self._certificates = Certificates(service.config) if is_secure else None
        self._notifier = Notifier()
        self._given: Given | None = None  # a listening socket of another process
        self._offer: Offer | None = None
        self._has_left = False  # another process has what comes from now on
        self._has_successor = False  # and the files of unix sockets, too
        self._is_in_place = False  # those files are this server's
        self.port = 0

    async def run(self, on_ready: Callable[[Self], None] | None = None) -> None:
        """Serve until `end` is called."""
        config, loop = self._service.config, asyncio.get_running_loop()
        self._open()
        self._given = given = await asyncio.to_thread(given_socket, config)
        listening = self._bound() if given is None else given.listening
        self.port = listening.getsockname()[1] if config.uds is None else 0
        admin, offering = self._admin_socket(), self._offering_socket()
        loop_lag = LoopLag(self._service.metrics.loop_lag.observe)
        watches = [loop.create_task(each) for each in (keep_heap_small(), *self._watches())]
        for number in self._signals:
            loop.add_signal_handler(number, self._hear, number)  # until the loop is closed
        loop_lag.start()
        try:
            await self._start(listening, admin)
            await self._take_over(listening, offering)
            if on_ready is not None:
                on_ready(self)
            self._notifier.say_ready()
            await self._ending.wait()
            self._notifier.say("STOPPING=1", seconds=1.0)
            await self._drain()
        finally:
            self._is_closing = True
            for watch in watches:
                watch.cancel()
            await self._close()
            self._remove_files()
            loop_lag.stop()
            for each in (listening, admin, offering if self._offer is None else None):
                if each is not None:
                    each.close()

    def _hear(self, number: int) -> None:
        """Handle a signal: one that comes when all requests have ended ends the process at once."""
        if self._is_closing:
            self._remove_files()
            leave_at_once(_SIGNALLED + number)
        self.end()

    def end(self) -> None:
        """Drain at the first call, and stop at once at the second."""
        if self._ending.is_set():
            self._hurry.set()
        if self._given is not None and self._given.predecessor is None and not self._has_left:
            self.leave()  # systemd keeps the socket, for the next process
            return
        self._service.drain()
        self._ending.set()

    def leave(self) -> None:
        """Let another process have the connections that come from now on, and then end.

        Requests of connections that are open are answered as ever, within the time of the drain.
        """
        self._has_left = True
        self._service.leave()
        if self._clients is not None:
            self._clients.leave()
        self._ending.set()

    def _hand_over(self) -> None:
        self._has_successor = True
        self.leave()

    async def _take_over(self, listening: socket.socket, offering: socket.socket | None) -> None:
        """Let the server before this one go, and offer the socket to the next one."""
        config = self._service.config
        if self._has_predecessor:
            assert config.handover is not None, "it was found there"
            await asyncio.to_thread(take_over, config.handover)
            if config.uds is not None and not config.uds.is_socket():
                raise ServerStartError(
                    f"the server before this one has ended, and its unix socket {config.uds} with "
                    "it; start again"
                )
            if config.admin_socket is not None:
                put_in_place(config.admin_socket)
        if offering is not None:
            assert config.handover is not None, "there is a socket for it"
            put_in_place(config.handover)
            self._offer = Offer(listening, self._hand_over)
            self._offer.start(offering)
        self._is_in_place = True

    @property
    def _has_predecessor(self) -> bool:
        return self._given is not None and self._given.predecessor is not None

    def _bound(self) -> socket.socket:
        return bind(self._service.config) if self._room is None else self._room.listening

    def _admin_socket(self) -> socket.socket | None:
        path = self._service.config.admin_socket
        if path is None:
            return None
        if self._has_predecessor:
            return bind_beside(path, "admin socket", "--admin-socket")
        return bind_admin(path)

    def _offering_socket(self) -> socket.socket | None:
        path = self._service.config.handover
        return None if path is None else bind_beside(path, "handover socket", "--handover")

    def _remove_files(self) -> None:
        """Remove the unix sockets of this server, and no other server's.

        One that has left has given its files away; one that could not begin has taken none.
        """
        if self._offer is not None:
            self._offer.stop()
        if self._has_successor:
            return
        config, given = self._service.config, self._given
        admin, handover, uds = config.admin_socket, config.handover, config.uds
        if not self._is_in_place:
            handover = None if handover is None else beside(handover)
            if self._has_predecessor:
                admin, uds = None if admin is None else beside(admin), None
        if given is not None and given.predecessor is None:
            uds = None  # it is systemd's
        for path in (admin, handover, uds):
            if path is not None:
                path.unlink(missing_ok=True)

    @property
    def num_connections(self) -> int:
        """The number of open connections of clients, without operators'."""
        return self._connections.num_open

    # what a service does besides

    def _open(self) -> None:  # noqa: B027 (a router has nothing of the kind)
        """Open what must be there before anything listens; raise an error if it cannot be."""

    @abstractmethod
    async def _start(self, listening: socket.socket, admin: socket.socket | None) -> None:
        """Make the service ready, and listen at the sockets."""

    @abstractmethod
    async def _close(self) -> None:
        """End what was begun; `_stop_listening` ends the connections."""

    def _watches(self) -> list[Coroutine[Any, Any, None]]:
        """Return the work that goes on beside requests until the end."""
        watches = [self._notifier.watch(lambda: self._service.has_failed)]
        return watches if self._certificates is None else [*watches, self._certificates.watch()]

    # the sockets

    def _make_connections(self, **options: Any) -> Connections:
        service = self._service
        return Connections(service.config, service.metrics, self._error_body, **options)

    async def _listen(
        self, answer: Callable[[Response], Awaitable[None]], listening: socket.socket
    ) -> None:
        """Answer clients at their socket, under TLS if there are certificates."""
        accept = None if self._certificates is None else self._accept_securely
        self._clients = Listener(self._connections, answer)
        self._listeners.append(self._clients)
        waiting = [] if self._room is None else self._room.leave()
        await self._clients.start(listening, accept)
        for connection in waiting:
            await self._clients.adopt(connection)

    async def _listen_to_operators(
        self, answer: Callable[[Response], Awaitable[None]], listening: socket.socket
    ) -> None:
        """Answer operators at a socket of their own, whose connections have no limit."""
        listener = Listener(self._make_connections(), answer)
        self._listeners.append(listener)
        await listener.start(listening)

    async def _accept_securely(
        self, listening: socket.socket, make: Callable[[], Connection]
    ) -> None:
        assert self._certificates is not None
        await accept_securely(listening, self._connections, self._certificates, make)

    async def _stop_listening(self) -> None:
        """Accept nothing more, and end the connections when what is due was written."""
        for place in list(self._connections.handshakes):
            place.close()
        await asyncio.gather(*(each.stop(self._hurry.is_set) for each in self._listeners))

    def _is_in_use(self) -> bool:
        """Return whether a request is open, or a connection that is left to end by itself."""
        connections = self._connections
        is_connected = bool(connections.open or connections.handshakes)
        return self._service.num_open > 0 or (self._has_left and is_connected)

    async def _drain(self) -> None:
        """Wait until all requests ended, `drain_seconds` passed or a second signal came."""
        service, seconds = self._service, self._service.config.drain_seconds
        log.info(
            "draining; open requests: %d, which end within %g s, or at a second signal",
            *(service.num_open, seconds),
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._is_in_use() and not self._hurry.is_set():
                    await asyncio.sleep(_TICK_SECONDS)
        service.drain()
        error = unavailable(f"the {self.noun} is shutting down", "server_shutdown")
        for request in list(service.active()):
            request.stop(error)
        for _ in range(_END_TICKS):
            if not service.active():
                break
            await asyncio.sleep(_TICK_SECONDS)


def run_to_end(config: TransportSettings, serve: Callable[[], Awaitable[None]]) -> int:
    """Serve in a new event loop until a signal ends it; return the exit code of the process."""
    if config.has_short_key:
        log.warning(
            "an API key has fewer than %d characters and can be guessed; it is accepted because "
            "only this machine can connect",
            MIN_KEY_CHARACTERS,
        )

    async def main() -> None:
        settle_memory()
        await serve()

    import uvloop

    try:
        uvloop.run(main())
    finally:
        discard_output()
    return 0
