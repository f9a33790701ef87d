"""Places for open connections: limited in all and for each client, with a reserve for health.

A connection beyond a limit gets a place in the reserve. There it may ask for a health route, since
a server that is full must not look dead; every other request is refused. A reserve that is full
closes its oldest connection, so that idle connections cannot fill it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

from octavo.options.transport import TransportSettings
from octavo.transport.answer import path_within
from octavo.transport.auth import HEALTH
from octavo.transport.errors import ApiError, too_many, unavailable

if TYPE_CHECKING:
    from octavo.observe.http_metrics import HttpMetrics
    from octavo.transport.connection import Connection

NUM_RESERVED = 32
RESERVED_SECONDS = 1.0  # for the head of a request in the reserve to arrive


class Place:
    """The place of one open connection; one in the reserve has a refusal."""

    __slots__ = ("client", "close", "refusal")

    def __init__(self, client: str, refusal: ApiError | None, close: Callable[[], object]) -> None:
        self.client = client
        self.refusal = refusal  # of everything but a health route
        self.close = close  # refuses what the connection waits for, and closes it


class Connections:
    """The open connections of one socket, counted in all and for each client."""

    def __init__(
        self,
        config: TransportSettings,
        metrics: HttpMetrics,
        error_body: Callable[[ApiError], bytes],
        *,
        max_connections: int | None = None,
        max_per_client: int | None = None,
    ) -> None:
        self.config = config
        self.metrics = metrics
        self.error_body = error_body  # of a refused connection
        self.open: set[Connection] = set()  # of HTTP
        self.is_leaving = False  # another process has the next connections
        self.max_connections = max_connections or config.max_connections
        self.max_per_client = max_per_client or config.max_connections_per_client
        self.by_client: Counter[str] = Counter()
        self.num_open = 0  # without the reserve
        self.handshakes: dict[Place, asyncio.Task[None]] = {}  # of TLS, which have not ended
        self._reserve: dict[Place, None] = {}  # the oldest first

    def enter(self, client: str, close: Callable[[], object]) -> Place:
        """Count a connection and return its place; `client` is empty if it has no address."""
        refusal = self._refusal(client)
        place = Place(client, refusal, close)
        if refusal is None:
            self.num_open += 1
            self.by_client[client] += 1
            return place
        if len(self._reserve) >= NUM_RESERVED:
            oldest = next(iter(self._reserve))
            del self._reserve[oldest]  # now, since the transport closes later
            oldest.close()
        self._reserve[place] = None
        return place

    def leave(self, place: Place) -> None:
        """Count a connection as closed."""
        if place.refusal is not None:
            self._reserve.pop(place, None)
            return
        client = place.client
        self.num_open -= 1
        self.by_client[client] -= 1
        if not self.by_client[client]:
            del self.by_client[client]

    def response(self, error: ApiError) -> bytes:
        """Return the whole response of a refused connection, which is closed behind it."""
        body = self.error_body(error)
        head = [b"HTTP/1.1 %d %b" % (error.status, HTTPStatus(error.status).phrase.encode())]
        head += [b"%b: %b" % header for header in error.headers]
        head += [b"content-type: application/json", b"content-length: %d" % len(body)]
        return b"\r\n".join([*head, b"connection: close", b"", body])

    def is_for_health(self, target: bytes) -> bool:
        """Return whether a request's target is a route that a full server answers too."""
        path = target.partition(b"?")[0].decode("latin-1")
        return path_within(self.config.root_path, path) in HEALTH

    def _refusal(self, client: str) -> ApiError | None:
        most = self.max_connections
        if self.num_open >= most:
            message = f"{self.num_open} connections are open, and the limit is {most}"
            return unavailable(message, "too_many_connections", 1)
        most = self.max_per_client
        if client and self.by_client[client] >= most:
            message = f"this address has {self.by_client[client]} open connections, the most"
            return too_many(message, 1, "too_many_connections")
        return None
