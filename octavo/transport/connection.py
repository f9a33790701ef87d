"""HTTP/1.1 connections with limits on their number, the size of heads, and time.

This extends uvicorn's protocol; `tests/server/http/test_uvicorn_internals.py` lists what it uses. A
connection that exceeds a limit or is not HTTP is closed, after an error in JSON where a response is
possible: at once, or after the responses that are due to earlier requests.
"""

from __future__ import annotations

import asyncio
import weakref
from functools import partial
from typing import Any, NoReturn

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from octavo.transport.connections import RESERVED_SECONDS, Connections, Place
from octavo.transport.errors import ApiError
from octavo.transport.half_close import Probe
from octavo.transport.safe_transport import SafeTransport

SLICE_BYTES = 16 << 10  # parsed in one pass of the event loop: about 3 ms of the shortest chunks
MAX_PIPELINED = 64  # requests that wait behind the one that is answered
MAX_BEHIND_BYTES = 512 << 10  # of them
MAX_CHUNKS = 1 << 16  # of a body, since each takes time however short it is
_HOP_HEADERS = (b"connection", b"upgrade", b"http2-settings")


def bounded_protocol(connections: Connections) -> type[_Bounded]:
    """Return the class of protocol that uvicorn instantiates for each connection."""

    class BoundedProtocol(_Bounded):
        shared = connections

    return BoundedProtocol


class _Bounded(HttpToolsProtocol):
    shared: Connections

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.place: Place | None = None  # under TLS since before the handshake
        self.was_made = False  # `connection_made` was called
        self._running: RequestResponseCycle | None = None  # whose application was started last
        self._is_in_head = False
        self._has_progress = False  # the parser has reported something besides headers
        self._loose_bytes = 0  # received since then
        self._behind_bytes = 0  # received since a request waits behind the one that is answered
        self._rest = b""  # received, and not parsed yet
        self._num_headers = self._size = self._num_chunks = 0  # of the request that is parsed
        # What to write after the responses that are due; meanwhile nothing more is parsed.
        self._last_words: bytes | None = None
        self._probe: Probe | None = None
        self._has_ended = False  # the client has closed its half of the connection
        self._head_timer: asyncio.TimerHandle | None = None
        self._rest_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._inner = transport
        self._safe = SafeTransport(transport, self.loop, self._client_may_send)
        super().connection_made(self._safe)
        if self.place is None:
            name = self.client[0] if self.client else ""
            self.place = self.shared.enter(name, self.make_room)
        else:
            self.place.close = self.make_room
        self.was_made = True
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        # All requests of the connection, of which uvicorn notifies only the last.
        for cycle in (self._running, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None:
                _disconnect(cycle)
        self.pipeline.clear()
        self._safe.lost()
        super().connection_lost(exc)
        self._stop_timer()
        self._unset_keepalive_if_required()  # uvicorn does so after an orderly close only
        if self._rest_timer is not None:
            self._rest_timer.cancel()
        if self._probe is not None:
            self._probe.stop()
            self._probe = None
        if self.place is not None:
            self.shared.leave(self.place)
            self.place = None
        # These refer back to this object. Their circles would keep a closed connection until a
        # garbage collection, and with thousands of them it would hold the event loop.
        self.cycle = self._running = None  # type: ignore[assignment]
        self.scope = {}  # type: ignore[typeddict-item]

    def shutdown(self) -> None:
        self._safe.stop_lingering()
        super().shutdown()

    def data_received(self, data: bytes) -> None:
        if self._rest:
            self._rest += data
            return
        if len(data) > SLICE_BYTES:
            self._rest = data[SLICE_BYTES:]
            self._safe.hold_reading()
            self.loop.call_soon(self._take_rest)
        self._take(data[:SLICE_BYTES])

    def _take_rest(self) -> None:
        """Parse the next slice of what was received; read on when all is parsed."""
        data, self._rest = self._rest[:SLICE_BYTES], self._rest[SLICE_BYTES:]
        if self._rest and not self._is_deaf:
            self.loop.call_soon(self._take_rest)
        else:
            self._rest = b""
            self._safe.release_reading(is_paused=self.flow.read_paused)
        self._take(data)

    def _take(self, data: bytes) -> None:
        """Parse data that was received, and refuse what is malformed or too much."""
        if self._is_deaf:
            return
        if self._head_timer is None and self._is_free:
            self._await_head()
        self._unset_keepalive_if_required()
        self._has_progress = False
        try:
            self._feed(data)
        except httptools.HttpParserError:
            where = "head" if self._is_in_head or self._is_free else "body"
            self._refuse(
                ApiError(400, f"this is not a valid HTTP request: its {where} is malformed")
            )
            return
        self._bound_what_waits(len(data))

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return whether to keep the connection: a client may end its input and still read."""
        if self.scheme == "https" or self.transport.is_closing():
            return False  # TLS has no half-closed connections
        if self._is_in_head or self._is_in_body:
            self._refuse(ApiError(400, "the request ended before it was complete"))
        if self._is_free:
            return False
        if not self._has_ended:
            self._has_ended = True
            if self._last_words is None:
                self._end_after_responses(b"")
            self._start_probe()
        return True

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        self._num_headers = self._size = self._num_chunks = 0
        self.scope["extensions"] = {"octavo.cut": {"call": self.transport.abort}}

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_headers += 1
        self._size += len(name) + len(value) + 4
        config = self.shared.config
        if self._size > config.max_header_bytes or self._num_headers > config.max_headers:
            self._refuse_head()
        if self._is_in_head:  # or it is a trailer, which must not pass for a header
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._size + len(self.url) > self.shared.config.max_header_bytes:
            self._refuse_head()
        self._check_head()
        self._is_in_head = False
        self._has_progress = True
        if self.parser.should_upgrade():
            return  # `_feed` goes on without it
        self._stop_timer()
        super().on_headers_complete()
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.scope is not self.scope:
            return
        if self.place is None or self.place.refusal is not None:
            cycle.keep_alive = False  # its place in the reserve is for others then
        if self.shared.writes_directly:
            # A weak reference, since the cycle holds the scope: a circle would keep both until
            # the garbage collector runs. The cycle lives as long as the application that writes.
            write = partial(self._write, weakref.ref(cycle))
            self.scope["extensions"]["octavo.must_wait"] = {"call": self._must_wait}
            self.scope["extensions"]["octavo.write"] = {"call": write}

    def on_chunk_header(self) -> None:
        """Count a chunk; the parser calls it for each."""
        self._num_chunks += 1
        if self._num_chunks > MAX_CHUNKS:
            self._refuse(ApiError(400, f"the body has more than {MAX_CHUNKS} chunks"))
            _stop_parsing()

    def on_body(self, body: bytes) -> None:
        self._has_progress = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._has_progress = True
        if self.parser.should_upgrade():
            return
        if self._head_timer is not None and self._is_free:
            self._stop_timer()  # this was the rest of a body that the application did not read
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._probe is not None:
            self._probe.stop()
            self._probe = None
        rest = self.transport.get_write_buffer_size()
        super().on_response_complete()
        if self._last_words is not None and self._is_free and not self.transport.is_closing():
            self.transport.write(self._last_words)
            self.transport.close()
        if rest and self._rest_timer is None:
            self._await_reading(rest)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        if not self.pipeline:
            self._behind_bytes = 0
        super()._start_asgi_task(cycle, app)
        if self._has_ended:
            self._start_probe()

    def _feed(self, data: bytes) -> None:
        """Parse data. A client that offers another protocol is served in HTTP/1.1.

        The parser stops at such a head without its body, so a head without the offer replaces it.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            method, version = self.parser.get_method(), self.parser.get_http_version()
            lines = [b"%b %b HTTP/%b" % (method, self.url, version.encode())]
            lines += [b"%b: %b" % pair for pair in self.headers if pair[0] not in _HOP_HEADERS]
            rest = data[upgrade.args[0] :]
            self.parser = httptools.HttpRequestParser(self)
            self._feed(b"\r\n".join([*lines, b"", b""]) + rest)

    def _check_head(self) -> None:
        """Refuse a head that is valid for the parser, but not for this server."""
        version = self.parser.get_http_version()
        codings = [value.lower() for name, value in self.headers if name == b"transfer-encoding"]
        refusal = None if self.place is None else self.place.refusal
        if version not in ("1.0", "1.1"):
            self._refuse(ApiError(400, f"HTTP/{version} is not supported; use HTTP/1.1"))
        elif codings and (codings != [b"chunked"] or version == "1.0"):
            self._refuse(ApiError(400, "the only Transfer-Encoding is chunked, in HTTP/1.1"))
        elif self.parser.get_method() == b"CONNECT":
            self._refuse(ApiError(400, "this server is not a proxy"))
        elif refusal is not None and not self.shared.is_for_health(self.url):
            self.make_room()
        elif len(self.pipeline) >= MAX_PIPELINED:
            self._end_after_responses(b"")
        else:
            return
        _stop_parsing()

    def _bound_what_waits(self, num_bytes: int) -> None:
        """Refuse an endless head, and read no more behind a request that is being answered.

        Reading goes on while requests wait, since only a read shows that the client has gone.
        """
        waits = self._is_in_head or not self._has_progress
        self._loose_bytes = self._loose_bytes + num_bytes if waits else 0
        if self._loose_bytes > self.shared.config.max_header_bytes + SLICE_BYTES:
            self._refuse(ApiError(431, "the request's head is too large"))
        elif self.pipeline:
            self._behind_bytes += num_bytes
            if self._behind_bytes > MAX_BEHIND_BYTES:
                self._end_after_responses(b"")
        if self.pipeline:
            self.flow.resume_reading()

    def _await_reading(self, rest: int) -> None:
        """Start a timer: after the last write no task waits for the client to read the rest."""
        seconds = self.shared.config.stall_seconds
        self._rest_timer = self.loop.call_later(seconds, self._check_rest, rest)

    def _check_rest(self, before: int) -> None:
        self._rest_timer = None
        rest = self.transport.get_write_buffer_size()
        if self._is_free and rest >= before:
            self.shared.metrics.slow_readers.add()
            self.transport.abort()
        elif rest:
            self._await_reading(rest)

    def _refuse_head(self) -> NoReturn:
        config = self.shared.config
        self._refuse(
            ApiError(
                431,
                f"the request's head has more than {config.max_header_bytes} bytes or "
                f"{config.max_headers} headers",
            )
        )
        _stop_parsing()

    def _must_wait(self) -> bool:
        """Return whether the next write must wait until the client has read earlier data."""
        return self.flow.write_paused

    def _write(self, reference: weakref.ref[RequestResponseCycle], body: bytes) -> None:
        """Write a part of a streamed body as the cycle's `send` does, when it need not wait."""
        cycle = reference()
        assert cycle is not None, "the application that writes is running"
        if cycle.disconnected or self._inner.is_closing():
            return  # `send` has dropped the start of the response, too
        assert cycle.chunked_encoding, "the response must have started, without a length"
        assert not cycle.response_complete, "the response must not have ended"
        self._inner.write(b"%x\r\n%b\r\n" % (len(body), body))

    def _client_may_send(self) -> bool:
        """Return whether more of a request may arrive that is not read to its end."""
        if self._has_ended:
            return False
        if self._last_words is not None:
            return True
        return self._running is not None and self._running.more_body

    @property
    def _is_deaf(self) -> bool:
        """True when nothing more is parsed."""
        return self.transport.is_closing() or self._last_words is not None

    @property
    def _is_free(self) -> bool:
        """True while no response is due."""
        return self._running is None or self._running.response_complete

    @property
    def _is_in_body(self) -> bool:
        """True while the body of the request that is being answered arrives."""
        running = self._running
        if running is None or running.response_complete:
            return False
        return running is self.cycle and running.more_body

    def _await_head(self) -> None:
        if self._head_timer is None:
            seconds = self.shared.config.header_seconds
            if self.place is not None and self.place.refusal is not None:
                seconds = min(seconds, RESERVED_SECONDS)
            self._head_timer = self.loop.call_later(seconds, self._head_is_late, seconds)

    def _head_is_late(self, seconds: float) -> None:
        self._head_timer = None
        if self.place is not None and self.place.refusal is not None:
            self.make_room()
        else:
            self._refuse(ApiError(408, f"the request's head did not arrive within {seconds:g} s"))

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _start_probe(self) -> None:
        if self._running is not None and not self._is_free:
            self._probe = Probe(self.loop, self.transport, self._running)

    def make_room(self) -> None:
        """Refuse a connection in the reserve."""
        assert self.place is not None, "the connection is open"
        refusal = self.place.refusal
        if refusal is not None:
            self.shared.metrics.refused_connections.add(1, str(refusal.status))
            self._refuse(refusal)

    def _refuse(self, error: ApiError) -> None:
        """Write an error without the application, and close."""
        if self._is_deaf:
            return
        self.shared.metrics.protocol_refusals.add(1, str(error.status))
        self._stop_timer()
        if not self._is_in_body:
            self._end_after_responses(self.shared.response(error))
            return
        assert self._running is not None, "its body arrives"
        self._last_words = b""
        if not self._running.response_started:
            self.transport.write(self.shared.response(error))
        _disconnect(self._running)
        self.transport.close()

    def _end_after_responses(self, last_words: bytes) -> None:
        """Read no more requests, write this after the responses that are due, and close."""
        self._last_words = last_words
        self.flow.resume_reading()  # or a disconnect would go unseen
        if self.pipeline and self.cycle.more_body:
            self.pipeline.popleft()  # the newest, which will not become complete
        if self._is_free:
            self.transport.write(last_words)
            self.transport.close()


def _disconnect(cycle: RequestResponseCycle) -> None:
    """Let the application see that the client has gone."""
    if not cycle.response_complete:
        cycle.disconnected = True
        cycle.message_event.set()


def _stop_parsing() -> NoReturn:
    raise ValueError("the request is refused")
