"""The connections to one server: made when they are needed, and kept for a moment for the next."""

from __future__ import annotations

import asyncio
import os
import ssl

from octavo.route.address import Address
from octavo.route.client import UpstreamConnection, UpstreamError

MAX_IDLE = 32  # connections of one server that are kept
# Many servers close a connection that was idle for 5 s. A request that is sent at that moment is
# lost, and may not be sent again, since it may have begun.
IDLE_SECONDS = 2.0


class UnreachableError(UpstreamError):
    """A server to which no connection can be made: nothing was sent."""


class ConnectionPool:
    """The connections to one server."""

    def __init__(
        self, address: Address, tls: ssl.SSLContext | None, connect_seconds: float
    ) -> None:
        self._address = address
        self._tls = tls if address.scheme == "https" else None
        self._connect_seconds = connect_seconds
        self._idle: dict[UpstreamConnection, asyncio.TimerHandle] = {}  # the newest last

    async def take(self) -> UpstreamConnection:
        """Return a connection that is open and has nothing to do."""
        while self._idle:
            connection, timer = self._idle.popitem()
            timer.cancel()
            if connection.is_open:
                return connection
            connection.close()
        return await self.connect()

    async def connect(self) -> UpstreamConnection:
        """Return a new connection."""
        loop, address = asyncio.get_running_loop(), self._address
        try:
            async with asyncio.timeout(self._connect_seconds):
                _, connection = await loop.create_connection(
                    lambda: UpstreamConnection(self._forget),
                    address.host,
                    address.port,
                    ssl=self._tls,
                    server_hostname=address.host if self._tls is not None else None,
                )
        except TimeoutError:
            raise UnreachableError(
                f"no connection within {self._connect_seconds:g} s", is_late=True
            ) from None
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            if isinstance(error, ConnectionError) and error.errno is not None:
                reason = os.strerror(error.errno)  # asyncio writes the call and the address
            raise UnreachableError(f"no connection: {reason.lower()}") from None
        return connection

    def give_back(self, connection: UpstreamConnection) -> None:
        """Keep a connection for the next request, or close one whose response is not whole."""
        if not connection.finish():
            return
        if len(self._idle) >= MAX_IDLE:
            connection.close()
            return
        loop = asyncio.get_running_loop()
        self._idle[connection] = loop.call_later(IDLE_SECONDS, connection.close)

    def close(self) -> None:
        """Close the connections that have nothing to do."""
        for connection, timer in list(self._idle.items()):
            timer.cancel()
            connection.close()
        self._idle.clear()

    def _forget(self, connection: UpstreamConnection) -> None:
        timer = self._idle.pop(connection, None)
        if timer is not None:
            timer.cancel()
