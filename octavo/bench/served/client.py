"""A client for measurements, which passes on the parts of a response with their times."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from weakref import WeakSet

from octavo.route.address import Address
from octavo.route.client import UpstreamConnection, UpstreamError
from octavo.route.pool import ConnectionPool

MOST_BYTES = 256 << 20  # of a response; an answer takes less, and a server may never end one
_MOST_READ = 16 << 20  # of one that is read as a whole
_CONNECT_SECONDS = 60.0

Take = Callable[[float, bytes], None]  # a part of a body, with the time at which it was read


class Client:
    """A client of one server, whose connections are kept and used again."""

    def __init__(self, address: Address, headers: Mapping[str, str], seconds: float) -> None:
        tls = ssl.create_default_context() if address.scheme == "https" else None
        self._pool = ConnectionPool(address, tls, _CONNECT_SECONDS)
        self._used: WeakSet[UpstreamConnection] = WeakSet()  # of those that are open
        self._base = address.base
        self._seconds = seconds  # without anything from the server
        head = {"Host": address.authority, "Content-Type": "application/json", **headers}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in head.items())

    async def send(
        self, method: str, path: str, body: bytes, take: Take, most_bytes: int = MOST_BYTES
    ) -> int:
        """Send a request and return its status; raise UpstreamError if that fails.

        A kept connection that the server has closed in the meantime is replaced once.
        """
        line = f"{method} {self._base}{path} HTTP/1.1\r\n"
        head = f"{line}{self._head}Content-Length: {len(body)}\r\n\r\n".encode("latin-1")
        connection = await self._pool.take()
        is_kept = connection in self._used
        try:
            try:
                connection.send(head, body, self._seconds)
                response = await connection.head()
            except UpstreamError:
                if not is_kept:
                    raise
                self._pool.give_back(connection)
                connection = await self._pool.connect()
                connection.send(head, body, self._seconds)
                response = await connection.head()
            num_bytes = 0
            while part := await connection.part():
                take(time.perf_counter(), part)
                num_bytes += len(part)
                if num_bytes > most_bytes:
                    raise UpstreamError(f"its response is longer than {most_bytes:,} bytes")
            return response.status
        finally:
            self._used.add(connection)
            self._pool.give_back(connection)

    async def read(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Return the status and the whole body of a response."""
        parts: list[bytes] = []

        def take(at: float, part: bytes) -> None:
            parts.append(part)

        status = await self.send(method, path, body, take, _MOST_READ)
        return status, b"".join(parts)

    async def close(self) -> None:
        """Close the connections that are kept."""
        self._pool.close()
        await asyncio.sleep(0)  # in which the transports of all that were closed end
