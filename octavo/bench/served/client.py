"""An HTTP/1.1 client for measurements: kept connections, and a time for each part that arrives."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

import httptools

from octavo.core.config import ConfigError

MOST_BYTES = 256 << 20  # of a response; an answer takes less, and a server may never end one
_PORTS = {"http": 80, "https": 443}


class Address(NamedTuple):
    """The place of a server, and the path before those of its routes."""

    host: str
    port: int
    is_secure: bool
    path: str

    @classmethod
    def of(cls, url: str) -> Address:
        """Return the address of a URL; raise ConfigError for one that is wrong."""
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError as error:
            raise ConfigError(f"the URL {url[:200]!r} is wrong: {error}") from None
        if parts.scheme not in _PORTS or not parts.hostname or parts.query or parts.fragment:
            raise ConfigError(f"the URL {url[:200]!r} must be as http://HOST:PORT or https://HOST")
        return cls(parts.hostname, port, parts.scheme == "https", parts.path.rstrip("/"))

    @property
    def name(self) -> str:
        """The value of the header `Host`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port in _PORTS.values() else f"{host}:{self.port}"


class LostError(Exception):
    """A connection that was closed before its response was complete."""


Take = Callable[[float, bytes], None]  # a part of a body, with the time of its arrival


class _Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self) -> None:
        self.is_open = True
        self.has_read = False  # something of the response to the last request
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[int] | None = None
        self._take: Take = _ignore
        self._num_bytes = 0
        self._now = 0.0
        self._has_length = False  # else the body lasts as long as the connection
        self._has_head = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    async def send(self, request: bytes, take: Take) -> int:
        """Send a request, pass on its body as it comes, and return the status at its end."""
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._take, self._num_bytes, self.has_read = take, 0, False
        self._has_length = self._has_head = False
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._done
        finally:
            if not self._done.done() or self._done.cancelled() or self._done.exception():
                self.close()
            self._done, self._take = None, _ignore

    def close(self) -> None:
        """Close the connection at once."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._now, self.has_read = time.perf_counter(), True
        if self._done is None:  # behind the end of a response
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"the response is not HTTP: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._has_head and not self._has_length and error is None:
            self.on_message_complete()
        self._fail(str(error) if error else "the server closed the connection")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note whether the response says where it ends."""
        self._has_length |= name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        """Note that the body begins."""
        self._has_head = self._parser.get_status_code() >= 200

    def on_body(self, body: bytes) -> None:
        """Pass on a part of the body."""
        self._num_bytes += len(body)
        if self._num_bytes > MOST_BYTES:
            self._fail(f"the response is longer than {MOST_BYTES:,} bytes")
        else:
            self._take(self._now, body)

    def on_message_complete(self) -> None:
        """Note the end of the response."""
        status = self._parser.get_status_code()
        if status < 200:  # the final response follows
            return
        if not self._parser.should_keep_alive():
            self.is_open = False
        if self._done is not None and not self._done.done():
            self._done.set_result(status)

    def _fail(self, why: str) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(LostError(why))


def _ignore(at: float, body: bytes) -> None:
    """Drop a part of a body that nothing waits for."""


class Client:
    """A client of one server, whose connections are kept and used again."""

    def __init__(self, address: Address, headers: Mapping[str, str]) -> None:
        self._address = address
        self._tls = ssl.create_default_context() if address.is_secure else None
        head = {"Host": address.name, "Content-Type": "application/json", **headers}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        self._idle: list[_Connection] = []

    async def send(self, method: str, path: str, body: bytes, take: Take) -> int:
        """Send a request and return its status; raise OSError or LostError if that fails.

        A kept connection that the server has closed in the meantime is replaced once.
        """
        line = f"{method} {self._address.path}{path} HTTP/1.1\r\n"
        request = f"{line}{self._head}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_open:
                continue
            try:
                return await self._send(connection, request, take)
            except LostError:
                if connection.has_read:
                    raise
                break
        return await self._send(await self._connect(), request, take)

    async def _send(self, connection: _Connection, request: bytes, take: Take) -> int:
        status = await connection.send(request, take)
        if connection.is_open:
            self._idle.append(connection)
        else:
            connection.close()
        return status

    async def _connect(self) -> _Connection:
        loop, address = asyncio.get_running_loop(), self._address
        _, connection = await loop.create_connection(
            _Connection, address.host, address.port, ssl=self._tls
        )
        return connection

    async def read(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Return the status and the whole body of a response."""
        parts: list[bytes] = []
        status = await self.send(method, path, body, lambda at, part: parts.append(part))
        return status, b"".join(parts)

    async def close(self) -> None:
        """Close the connections that are kept."""
        while self._idle:
            self._idle.pop().close()
        await asyncio.sleep(0)  # in which the transports of all that were closed end
