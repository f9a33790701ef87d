"""The port of gRPC: accepts connections, counts them, and passes their bytes on to grpcio.

grpcio limits neither the number of its connections nor those of one client. So it listens on a unix
socket in a directory that only this user can enter, and clients connect to this port, where their
connections have places and TLS as those of HTTP have. One connection takes three descriptors.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path
from typing import cast

from octavo.transport.connections import Connections, Place
from octavo.transport.errors import ApiError
from octavo.transport.tls import Certificates, accept_securely

log = logging.getLogger(__name__)

_BACKLOG = 2048
_LINGER_SECONDS = 5.0  # for a client to read what is left
_CONNECT_SECONDS = 0.05  # between two attempts, while too many wait at the inner socket
_CONNECT_ATTEMPTS = 100


class Relay:
    """The connections of clients, by the names that they have for grpcio."""

    def __init__(self, connections: Connections, certificates: Certificates | None) -> None:
        self.connections = connections
        self._certificates = certificates
        self._open: set[Relayed] = set()
        self._by_name: dict[str, Relayed] = {}
        self._server: asyncio.Server | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._listening: socket.socket | None = None
        self._path = Path()

    async def start(self, listening: socket.socket, path: Path) -> None:
        """Accept connections at `listening`; grpcio listens at `path`."""
        self._listening, self._path = listening, path
        loop = asyncio.get_running_loop()
        make = self._make
        if self._certificates is None:
            self._server = await loop.create_server(make, sock=listening, backlog=_BACKLOG)
            return
        listening.listen(_BACKLOG)
        listening.setblocking(False)
        accepting = accept_securely(listening, self.connections, self._certificates, make)
        self._accepting = loop.create_task(accepting)

    async def stop_accepting(self) -> None:
        """Accept no more connections; those that are open stay open."""
        if self._server is not None:
            self._server.close()
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait({self._accepting})
        for place in list(self.connections.handshakes):
            place.close()

    async def stop(self) -> None:
        """Close the connections when what was written is read, or soon."""
        waiting = [each.closed for each in self._open]
        for each in list(self._open):
            each.close()
        if waiting:
            await asyncio.wait(waiting, timeout=_LINGER_SECONDS)
        if self._server is not None:
            await self._server.wait_closed()
        if self._listening is not None:
            self._listening.close()

    def find(self, peer: str) -> Relayed | None:
        """Return the connection of a call, by the name of its peer in grpcio."""
        return self._by_name.get(peer.rpartition(":")[2])

    def _make(self) -> Relayed:
        return Relayed(self)

    # called by connections

    def add(self, connection: Relayed) -> None:
        self._open.add(connection)

    def name(self, name: str, connection: Relayed) -> None:
        self._by_name[name] = connection

    def remove(self, name: str, connection: Relayed) -> None:
        self._open.discard(connection)
        self._by_name.pop(name, None)

    async def connect(self) -> tuple[socket.socket, str]:
        """Return a connection to grpcio, and the name by which grpcio knows it."""
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            inner.setblocking(False)
            inner.bind("")  # to a name that the kernel makes
            for _ in range(_CONNECT_ATTEMPTS):
                try:
                    inner.connect(str(self._path))
                except BlockingIOError:
                    await asyncio.sleep(_CONNECT_SECONDS)
                else:
                    return inner, inner.getsockname()[1:].decode()
            raise TimeoutError
        except BaseException:
            inner.close()
            raise


class _Half(asyncio.Protocol):
    """One of two connections, whose bytes go to the other."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _Half | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.take(data)

    def take(self, data: bytes) -> None:
        """Write what the other half has received."""
        if self.transport is not None:
            self.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        other, self.other = self.other, None
        self.transport = None
        if other is not None:
            other.end()

    def end(self) -> None:
        """Close this half when what was written is read."""
        if self.transport is not None:
            self.transport.close()


class Relayed(_Half):
    """The half of a client, which has a place among the connections."""

    def __init__(self, relay: Relay) -> None:
        super().__init__()
        self._relay = relay
        self._name = ""
        self.place: Place | None = None  # under TLS since before the handshake
        self.was_made = False  # `connection_made` was called
        self._early = b""  # received before there is the other half
        self._timer: asyncio.TimerHandle | None = None
        self._connecting: asyncio.Task[None] | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def client(self) -> str:
        """The address of the client; empty if it has none."""
        return "" if self.place is None else self.place.client

    @property
    def refusal(self) -> ApiError | None:
        """The reason why calls are refused on a connection in the reserve, but for health."""
        return None if self.place is None else self.place.refusal

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.was_made = True
        self._relay.add(self)
        if self.place is None:
            address = transport.get_extra_info("peername")
            name = str(address[0]) if isinstance(address, tuple) else ""
            self.place = self._relay.connections.enter(name, self.make_room)
        else:
            self.place.close = self.make_room
        loop = asyncio.get_running_loop()
        if self.place.refusal is not None:
            seconds = self._relay.connections.config.header_seconds
            self._timer = loop.call_later(seconds, self.make_room)
        self._connecting = loop.create_task(self._connect())

    async def _connect(self) -> None:
        half = _Half()
        half.other = self
        try:
            inner, self._name = await self._relay.connect()
            self._relay.name(self._name, self)
            await asyncio.get_running_loop().create_unix_connection(lambda: half, sock=inner)
        except OSError as error:  # TimeoutError is one
            log.warning("a connection could not be passed on to grpcio: %s", error)
            self.abort()
            return
        if self.transport is None:  # it was closed in the meantime
            half.end()
            return
        self.other = half
        half.take(self._early)
        self._early = b""
        self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self.other is None and self.transport is not None:
            self._early += data
            self.transport.pause_reading()  # earlier, the event loop would read all the same
        else:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()
        if self._connecting is not None and not self._name:
            self._connecting.cancel()  # it waits, with a descriptor, for grpcio to accept
        self._relay.remove(self._name, self)
        if self.place is not None:
            self._relay.connections.leave(self.place)
            self.place = None
        if not self.closed.done():
            self.closed.set_result(None)

    def end(self) -> None:
        super().end()
        if self.transport is not None:
            if self._timer is not None:
                self._timer.cancel()
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_LINGER_SECONDS, self.abort)

    def close(self) -> None:
        """Close both halves when what was written is read, or soon."""
        if self.other is not None:
            self.other.end()
        self.end()

    def abort(self) -> None:
        """Close the connection at once."""
        if self.transport is not None:
            self.transport.abort()

    def make_room(self) -> None:
        """Close a connection in the reserve."""
        if self.refusal is not None:
            refused = self._relay.connections.metrics.refused_connections
            refused.add(1, str(self.refusal.status))
            self.abort()
