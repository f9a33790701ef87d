"""HTTP/1.1 connections with limits on their number, the size of heads, and time.

This extends uvicorn's protocol; `tests/server/http/test_uvicorn_internals.py` lists what it uses. A
connection that exceeds a limit is closed, after an error in JSON where a response is possible.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from octavo.server.http.errors import ApiError
from octavo.server.settings import ServerSettings

_REASONS = {
    400: "Bad Request",
    408: "Request Timeout",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


READ_BYTES = 256 << 10  # the most that a transport delivers at once


class Connections:
    """The open connections of one socket, counted in all and for each client."""

    def __init__(
        self,
        config: ServerSettings,
        count_stall: Callable[[], None],
        error_body: Callable[[ApiError], bytes],
        *,
        writes_directly: bool = True,
    ) -> None:
        self.config = config
        self.count_stall = count_stall
        self.error_body = error_body  # of a refused connection
        self.writes_directly = writes_directly  # or through ASGI's `send` alone
        self.by_client: Counter[str] = Counter()
        self.num_open = 0

    def enter(self, client: str) -> int:
        """Count a connection and return 0, or return the status to refuse it with."""
        if self.num_open >= self.config.max_connections:
            return 503
        if self.by_client[client] >= self.config.max_connections_per_client:
            return 429
        self.num_open += 1
        self.by_client[client] += 1
        return 0

    def leave(self, client: str) -> None:
        """Count a connection as closed."""
        self.num_open -= 1
        self.by_client[client] -= 1
        if not self.by_client[client]:
            del self.by_client[client]


def bounded_protocol(connections: Connections) -> type[HttpToolsProtocol]:
    """Return the class of protocol that uvicorn instantiates for each connection."""

    class BoundedProtocol(_Bounded):
        shared = connections

    return BoundedProtocol


class _Bounded(HttpToolsProtocol):
    shared: Connections

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._num_headers = 0
        self._is_in_head = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._rest_timer: asyncio.TimerHandle | None = None
        self._client_name: str | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        name = self.client[0] if self.client else "local"
        status = self.shared.enter(name)
        if status:
            self._refuse(status, "too many connections are open")
            return
        self._client_name = name
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()
        if self._rest_timer is not None:
            self._rest_timer.cancel()
        if self._client_name is not None:
            self.shared.leave(self._client_name)
            self._client_name = None

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._head_timer is None and self._is_free:
            self._await_head()
        super().data_received(data)
        # The parser reports a header only when it is complete.
        self._head_bytes = self._head_bytes + len(data) if self._is_in_head else 0
        if self._head_bytes > 2 * self.shared.config.max_header_bytes + READ_BYTES:
            self._refuse(431, "the request's head is too large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        self._num_headers = 0
        self._size = 0
        self.scope["extensions"] = {"octavo.cut": {"call": self.transport.abort}}

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._num_headers += 1
        self._size += len(name) + len(value) + 4
        config = self.shared.config
        if self._size > config.max_header_bytes or self._num_headers > config.max_headers:
            self._refuse_head()

    def on_headers_complete(self) -> None:
        if self._size + len(self.url) > self.shared.config.max_header_bytes:
            self._refuse_head()
        self._stop_timer()
        self._is_in_head = False
        super().on_headers_complete()
        cycle: RequestResponseCycle | None = self.cycle
        if self.shared.writes_directly and cycle is not None and cycle.scope is self.scope:
            # A weak reference, since the cycle holds the scope: a circle would keep both until
            # the garbage collector runs. The cycle lives as long as the application that writes.
            write = partial(self._write, weakref.ref(cycle))
            self.scope["extensions"]["octavo.must_wait"] = {"call": self._must_wait}
            self.scope["extensions"]["octavo.write"] = {"call": write}

    def on_message_complete(self) -> None:
        if self._head_timer is not None and self._is_free:
            self._stop_timer()  # this was the rest of a body that the application did not read
        super().on_message_complete()

    def on_response_complete(self) -> None:
        rest = self.transport.get_write_buffer_size()
        super().on_response_complete()
        if rest and self._rest_timer is None:
            self._await_reading(rest)

    def _await_reading(self, rest: int) -> None:
        """Start a timer: after the last write no task waits for the client to read the rest."""
        seconds = self.shared.config.stall_seconds
        self._rest_timer = self.loop.call_later(seconds, self._check_rest, rest)

    def _check_rest(self, before: int) -> None:
        self._rest_timer = None
        rest = self.transport.get_write_buffer_size()
        if self._is_free and rest >= before:
            self.shared.count_stall()
            self.transport.abort()
        elif rest:
            self._await_reading(rest)

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            self._refuse(400, "this is not a valid HTTP request")

    def _refuse_head(self) -> None:
        config = self.shared.config
        self._refuse(
            431,
            f"the request's head has more than {config.max_header_bytes} bytes or "
            f"{config.max_headers} headers",
        )
        raise ValueError("the head is too large")  # ends the parsing

    def _must_wait(self) -> bool:
        """Return whether the next write must wait until the client has read earlier data."""
        return self.flow.write_paused

    def _write(self, reference: weakref.ref[RequestResponseCycle], body: bytes) -> None:
        """Write a part of a streamed body as the cycle's `send` does, when it need not wait."""
        cycle = reference()
        assert cycle is not None, "the application that writes is running"
        assert cycle.chunked_encoding, "the response must have started, without a length"
        assert not cycle.response_complete, "the response must not have ended"
        if not cycle.disconnected:
            self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))

    @property
    def _is_free(self) -> bool:
        """True while no response is being written."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _await_head(self) -> None:
        if self._head_timer is None:
            seconds = self.shared.config.header_seconds
            self._head_timer = self.loop.call_later(seconds, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        self._refuse(
            408, f"the request's head did not arrive within {self.shared.config.header_seconds:g} s"
        )

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, status: int, message: str) -> None:
        """Write an error without the application, if no response has begun, and close."""
        if self.transport.is_closing():
            return
        self._stop_timer()
        body = self.shared.error_body(ApiError(status, message))
        retry = "retry-after: 1\r\n" if status in (429, 503) else ""
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n{retry}connection: close\r\n\r\n"
        )
        if self._is_free:
            self.transport.write(head.encode() + body)
        self.transport.close()
