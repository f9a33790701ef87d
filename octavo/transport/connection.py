"""HTTP/1.1 connections with limits on their number, the size of heads, and time.

The parser is httptools'; pipelining, flow control and ends are here. A connection that exceeds a
limit or is not HTTP is closed, after an error in JSON where a response is possible: at once, or
after the responses that are due to earlier requests.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn
from urllib.parse import unquote

import httptools

from octavo.transport.answer import RequestHead, headers_of
from octavo.transport.connections import RESERVED_SECONDS, Connections, Place
from octavo.transport.errors import ApiError
from octavo.transport.half_close import Probe
from octavo.transport.response import Response
from octavo.transport.safe_transport import SafeTransport

SLICE_BYTES = 16 << 10  # parsed in one pass of the event loop: about 3 ms of the shortest chunks
MAX_PIPELINED = 64  # requests that wait behind the one that is answered
MAX_BEHIND_BYTES = 512 << 10  # of them
MAX_CHUNKS = 1 << 16  # of a body, since each takes time however short it is
MAX_UNRECEIVED_BYTES = 64 << 10  # of a body, before reading pauses
_HOP_HEADERS = (b"connection", b"upgrade", b"http2-settings")

Answer = Callable[[Response], None]  # begins to answer a request, in a task


class Connection(asyncio.Protocol):
    """One connection, with the requests that came by it and have no whole response yet."""

    def __init__(self, shared: Connections, answer: Answer) -> None:
        self.shared = shared
        self._answer = answer
        self.loop = asyncio.get_running_loop()
        self.place: Place | None = None  # under TLS since before the handshake
        self.was_made = False  # `connection_made` was called
        self.client: tuple[str, int] | None = None
        self.server: tuple[str, int | None] | None = None
        self.scheme = "http"
        self.is_full = False  # what was written waits for the client to read
        self._room = asyncio.Event()
        self._is_reading = True
        # the requests: the one that is parsed, the one that is answered, and those between
        self._newest: Response | None = None
        self._running: Response | None = None
        self._waiting: deque[Response] = deque()
        self._parser: Any = _parser(self)
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._expects_continue = self._is_in_head = False
        self._num_headers = self._size = self._num_chunks = 0  # of the request that is parsed
        self._has_progress = False  # the parser has reported something besides headers
        self._loose_bytes = 0  # received since then
        self._behind_bytes = 0  # received since a request waits behind the one that is answered
        self._rest = b""  # received, and not parsed yet
        # What to write after the responses that are due; meanwhile nothing more is parsed.
        self._last_words: bytes | None = None
        self._probe: Probe | None = None
        self._has_ended = False  # the client has closed its half of the connection
        self._head_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._rest_timer: asyncio.TimerHandle | None = None

    # the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.inner = transport
        self.transport = SafeTransport(transport, self.loop, self._client_may_send)
        self.client, self.server = _address(transport, "peername"), _address(transport, "sockname")
        if transport.get_extra_info("sslcontext") is not None:
            self.scheme = "https"
        self.shared.open.add(self)
        if self.place is None:
            self.place = self.shared.enter(self.client[0] if self.client else "", self.make_room)
        else:
            self.place.close = self.make_room
        self.was_made = True
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self.shared.open.discard(self)
        for response in (self._running, *self._waiting):
            if response is not None:
                response.disconnect()
        self._waiting.clear()
        self.transport.lost()
        self.resume_writing()
        self.inner.close()
        for timer in (self._head_timer, self._idle_timer, self._rest_timer):
            if timer is not None:
                timer.cancel()
        self._stop_probe()
        if self.place is not None:
            self.shared.leave(self.place)
            self.place = None
        # These refer back to this object. Their circles would keep a closed connection until a
        # garbage collection, and with thousands of them it would hold the event loop.
        self._newest = self._running = self._parser = None

    def pause_writing(self) -> None:
        self.is_full = True
        self._room.clear()

    def resume_writing(self) -> None:
        self.is_full = False
        self._room.set()

    async def drained(self) -> None:
        """Wait until there is room for further writes, or the connection is lost."""
        await self._room.wait()

    def pause_reading(self) -> None:
        """Read nothing more, for the time being."""
        if self._is_reading:
            self._is_reading = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Let the client send more."""
        if not self._is_reading:
            self._is_reading = True
            self.transport.resume_reading()

    def shut_down(self) -> None:
        """Close the connection when no response is due any more."""
        self.transport.stop_lingering()
        if self._newest is None or self._newest.complete:
            self.transport.close()
        else:
            self._newest.keeps_alive = False

    def leave(self) -> None:
        """Let a response that has not begun be the last one, and say so."""
        if self._newest is not None and not self._newest.started:
            self._newest.keeps_alive = False

    def data_received(self, data: bytes) -> None:
        if self._rest:
            self._rest += data
            return
        if len(data) > SLICE_BYTES:
            self._rest = data[SLICE_BYTES:]
            self.transport.hold_reading()
            self.loop.call_soon(self._take_rest)
        self._take(data[:SLICE_BYTES])

    def _take_rest(self) -> None:
        """Parse the next slice of what was received; read on when all is parsed."""
        data, self._rest = self._rest[:SLICE_BYTES], self._rest[SLICE_BYTES:]
        if self._rest and not self._is_deaf:
            self.loop.call_soon(self._take_rest)
        else:
            self._rest = b""
            self.transport.release_reading(is_paused=not self._is_reading)
        self._take(data)

    def _take(self, data: bytes) -> None:
        """Parse data that was received, and refuse what is malformed or too much."""
        if self._is_deaf:
            return
        if self._head_timer is None and self._is_free:
            self._await_head()
        self._stop_idling()
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

    def eof_received(self) -> bool:
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

    # the parser

    def on_message_begin(self) -> None:
        self._url, self._headers = b"", []
        self._expects_continue, self._is_in_head = False, True
        self._num_headers = self._size = self._num_chunks = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_headers += 1
        self._size += len(name) + len(value) + 4
        config = self.shared.config
        if self._size > config.max_header_bytes or self._num_headers > config.max_headers:
            self._refuse_head()
        if self._is_in_head:  # or it is a trailer, which must not pass for a header
            name = name.lower()
            self._headers.append((name, value))
            if name == b"expect" and value.lower() == b"100-continue":
                self._expects_continue = True

    def on_headers_complete(self) -> None:
        if self._size + len(self._url) > self.shared.config.max_header_bytes:
            self._refuse_head()
        self._check_head()
        self._is_in_head = False
        self._has_progress = True
        if self._parser.should_upgrade():
            return  # `_feed` goes on without it
        self._stop_timer()
        is_full = self.place is None or self.place.refusal is not None
        keeps_alive = self._parser.get_http_version() != "1.0" and self._parser.should_keep_alive()
        self._newest = Response(
            self,
            self._head(),
            # A place in the reserve must become free, and the next server has what comes next.
            keeps_alive=keeps_alive and not (is_full or self.shared.is_leaving),
            expects_continue=self._expects_continue,
        )
        if self._is_free:
            self._run(self._newest)
        else:
            self.pause_reading()
            self._waiting.append(self._newest)

    def _head(self) -> RequestHead:
        """Return the head that was parsed."""
        url = httptools.parse_url(self._url)
        path = url.path.decode("ascii")
        return RequestHead(
            method=self._parser.get_method().decode("ascii"),
            path=unquote(path) if "%" in path else path,
            headers=headers_of(self._headers),
            query=(url.query or b"").decode("latin-1"),
            pairs=self._headers,
            target=self._url,
            version=self._parser.get_http_version(),
        )

    def on_chunk_header(self) -> None:
        """Count a chunk; the parser calls it for each."""
        self._num_chunks += 1
        if self._num_chunks > MAX_CHUNKS:
            self._refuse(ApiError(400, f"the body has more than {MAX_CHUNKS} chunks"))
            _stop_parsing()

    def on_body(self, body: bytes) -> None:
        self._has_progress = True
        newest = self._newest
        if newest is None or newest.complete:
            return
        newest.body += body
        if len(newest.body) > MAX_UNRECEIVED_BYTES:
            self.pause_reading()
        newest.news.set()

    def on_message_complete(self) -> None:
        self._has_progress = True
        newest = self._newest
        if self._parser.should_upgrade() or newest is None:
            return
        if self._head_timer is not None and self._is_free:
            self._stop_timer()  # this was the rest of a body that the application did not read
        if not newest.complete:
            newest.more_body = False
            newest.news.set()

    # the responses

    def on_response_complete(self) -> None:
        """Answer the next request, or wait for one."""
        self._stop_probe()
        rest = self.transport.get_write_buffer_size()
        if not self.transport.is_closing():
            self.resume_reading()
            if self._waiting:
                self._run(self._waiting.popleft())
            else:
                seconds = self.shared.config.idle_seconds
                self._idle_timer = self.loop.call_later(seconds, self.transport.close)
        if self._last_words is not None and self._is_free and not self.transport.is_closing():
            self.transport.write(self._last_words)
            self.transport.close()
        if rest and self._rest_timer is None:
            self._await_reading(rest)

    def _run(self, response: Response) -> None:
        self._running = response
        if not self._waiting:
            self._behind_bytes = 0
        self._answer(response)
        if self._has_ended:
            self._start_probe()

    def _feed(self, data: bytes) -> None:
        """Parse data. A client that offers another protocol is served in HTTP/1.1.

        The parser stops at such a head without its body, so a head without the offer replaces it.
        """
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            method, version = self._parser.get_method(), self._parser.get_http_version()
            lines = [b"%b %b HTTP/%b" % (method, self._url, version.encode())]
            lines += [b"%b: %b" % pair for pair in self._headers if pair[0] not in _HOP_HEADERS]
            rest = data[upgrade.args[0] :]
            self._parser = _parser(self)
            self._feed(b"\r\n".join([*lines, b"", b""]) + rest)

    def _check_head(self) -> None:
        """Refuse a head that is valid for the parser, but not for this server."""
        version = self._parser.get_http_version()
        codings = [value.lower() for name, value in self._headers if name == b"transfer-encoding"]
        refusal = None if self.place is None else self.place.refusal
        if version not in ("1.0", "1.1"):
            self._refuse(ApiError(400, f"HTTP/{version} is not supported; use HTTP/1.1"))
        elif codings and (codings != [b"chunked"] or version == "1.0"):
            self._refuse(ApiError(400, "the only Transfer-Encoding is chunked, in HTTP/1.1"))
        elif self._parser.get_method() == b"CONNECT":
            self._refuse(ApiError(400, "this server is not a proxy"))
        elif refusal is not None and not self.shared.is_for_health(self._url):
            self.make_room()
        elif len(self._waiting) >= MAX_PIPELINED:
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
        elif self._waiting:
            self._behind_bytes += num_bytes
            if self._behind_bytes > MAX_BEHIND_BYTES:
                self._end_after_responses(b"")
        if self._waiting:
            self.resume_reading()

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
        return self._running is None or self._running.complete

    @property
    def _is_in_body(self) -> bool:
        """True while the body of the request that is being answered arrives."""
        running = self._running
        if running is None or running.complete:
            return False
        return running is self._newest and running.more_body

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

    def _stop_idling(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def _start_probe(self) -> None:
        if self._running is not None and not self._is_free:
            self._probe = Probe(self.loop, self.transport, self._running)

    def _stop_probe(self) -> None:
        if self._probe is not None:
            self._probe.stop()
            self._probe = None

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
        if not self._running.started:
            self.transport.write(self.shared.response(error))
        self._running.disconnect()
        self.transport.close()

    def _end_after_responses(self, last_words: bytes) -> None:
        """Read no more requests, write this after the responses that are due, and close."""
        self._last_words = last_words
        self.resume_reading()  # otherwise a disconnect would not be noticed
        if self._waiting and self._waiting[-1].more_body:
            self._waiting.pop()  # the newest, which will not become complete
        if self._is_free:
            self.transport.write(last_words)
            self.transport.close()


def _parser(connection: Connection) -> Any:
    """Return a parser that calls the connection."""
    parser = httptools.HttpRequestParser(connection)
    with contextlib.suppress(AttributeError):  # older versions ignore data after a last request
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


def _address(transport: asyncio.Transport, name: str) -> Any:
    """Return an address with its port; None for that of a unix socket."""
    found = transport.get_extra_info(name)
    if not isinstance(found, tuple) or len(found) < 2:
        return None
    return str(found[0]), int(found[1])


def _stop_parsing() -> NoReturn:
    raise ValueError("the request is refused")
