"""A connection to a server, over HTTP/1.1: one request at a time, and its response in parts.

The parser is httptools'. What a server sends is believed only where there is one way to read it:
two lengths, an unknown coding, an endless head, or bytes that nothing asked for end the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import httptools

MAX_HEAD_BYTES = 64 << 10  # of a response, with its trailers
MAX_HEADERS = 128
MAX_INTERIM = 8  # responses before the final one (1xx)
HIGH_BYTES = 256 << 10  # of a body that are not taken yet, before reading pauses
_WITHOUT_BODY = (204, 304)
_CODING, _LENGTH = b"transfer-encoding", b"content-length"


class UpstreamError(Exception):
    """A server that gave no answer, or one that is not valid HTTP/1.1."""

    def __init__(self, message: str, *, is_late: bool = False) -> None:
        super().__init__(message)
        self.is_late = is_late  # it was silent for too long


class _WrongError(ValueError):
    """The reason for which a response is not taken, raised through the parser."""


class ResponseHead(NamedTuple):
    """The part of a response that precedes its body."""

    status: int
    headers: list[tuple[bytes, bytes]]  # by lower-case name
    length: int | None  # of the body, if it was announced

    def value(self, name: bytes) -> bytes | None:
        """Return the first value of a header; None if there is none."""
        return next((value for given, value in self.headers if given == name), None)


class UpstreamConnection(asyncio.Protocol):
    """One connection to a server, with at most one response that is due."""

    def __init__(self, on_lost: Callable[[UpstreamConnection], None]) -> None:
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._transport: Any = None
        self._timer: asyncio.TimerHandle | None = None
        self._has_ended = False  # the server has closed its half of the connection
        self._reset(is_due=False)

    def _reset(self, *, is_due: bool) -> None:
        self._parser: Any = httptools.HttpResponseParser(self) if is_due else None
        self._is_due = is_due
        self._headers: list[tuple[bytes, bytes]] = []
        self._num_headers = self._size = self._num_interim = 0
        self._is_interim = self._has_progress = False
        self._loose_bytes = 0  # received since the parser has reported something besides headers
        self._head: ResponseHead | None = None
        self._parts: list[bytes] = []
        self._num_bytes = 0  # of these
        self._is_complete = self._keeps_alive = self._is_paused = False
        self._failure: UpstreamError | None = None
        self._heard = 0.0
        self._news.clear()

    # the request

    def send(self, head: bytes, body: bytes, silent_seconds: float) -> None:
        """Write a request; a silence as long as this, before its response ends, is a failure."""
        self._reset(is_due=True)
        self._heard = self._loop.time()
        self._timer = self._loop.call_later(silent_seconds, self._check_silence, silent_seconds)
        if not self.is_open:
            self._fail("the connection was closed before the request")
            return
        self._transport.write(head)
        if body:
            self._transport.write(body)

    async def head(self) -> ResponseHead:
        """Return the head of the response, once it has come."""
        while self._head is None:
            await self._wait()
        return self._head

    async def part(self) -> bytes:
        """Return what has come of the body since the last call; nothing is its end."""
        while not self._parts:
            if self._is_complete:
                return b""
            await self._wait()
        found = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts, self._num_bytes = [], 0
        if self._is_paused:
            self._is_paused = False
            self._heard = self._loop.time()
            if self.is_open:
                self._transport.resume_reading()
        return found

    async def _wait(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._news.clear()
        await self._news.wait()

    def finish(self) -> bool:
        """End the use of the connection; return whether it can take another request."""
        self._stop_timer()
        is_reusable = (
            self.is_open
            and self._is_complete
            and self._keeps_alive
            and not self._transport.get_write_buffer_size()
        )
        self._reset(is_due=False)
        if not is_reusable:
            self.close()
        return is_reusable

    def close(self) -> None:
        """Close the connection at once."""
        self._stop_timer()
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_open(self) -> bool:
        """True while a request can be written."""
        transport = self._transport
        return transport is not None and not (self._has_ended or transport.is_closing())

    # the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._is_due or self._is_complete:  # nothing asked for this
            self._keeps_alive = False
            self.close()
            return
        self._heard = self._loop.time()
        self._has_progress = False
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._keeps_alive = False
            cause = error.__context__
            why = str(cause) if isinstance(cause, _WrongError) else "it is not HTTP/1.1"
            error.__traceback__ = error.__context__ = None
            self._fail(f"its response is not valid: {why}")
            return
        self._loose_bytes = 0 if self._has_progress else self._loose_bytes + len(data)
        if self._loose_bytes > MAX_HEAD_BYTES:
            self._fail("its response is not valid: its head is too large")

    def eof_received(self) -> bool:
        self._has_ended = True
        head = self._head
        if self._is_due and head is not None and not self._is_complete:
            coding = head.value(b"transfer-encoding")
            if coding is None and head.length is None and head.status not in _WITHOUT_BODY:
                self._is_complete = True  # the end of the connection is that of the body
                self._news.set()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_ended = True
        if self._is_due and not self._is_complete:
            where = "within its response" if self._head is not None else "without a response"
            self._fail(f"it closed the connection {where}")
        self._stop_timer()
        self._parser = None  # which refers back to this object
        self._on_lost(self)

    # the parser

    def on_message_begin(self) -> None:
        if self._is_complete:
            raise _WrongError("there are bytes behind its response")
        self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_headers += 1
        self._size += len(name) + len(value)
        if self._num_headers > MAX_HEADERS or self._size > MAX_HEAD_BYTES:
            raise _WrongError("its head is too large")
        if self._head is None:  # or it is a trailer, which is dropped
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            self._num_interim += 1
            self._is_interim = True
            if status == 101 or self._num_interim > MAX_INTERIM:
                raise _WrongError(f"it sent the status {status} in place of an answer")
            return
        self._head = ResponseHead(status, self._headers, self._length(status))
        self._has_progress = True
        self._news.set()

    def _length(self, status: int) -> int | None:
        """Return the announced length of the body; refuse what could be read in two ways."""
        codings = [value.strip().lower() for name, value in self._headers if name == _CODING]
        lengths = [value.strip() for name, value in self._headers if name == _LENGTH]
        version = self._parser.get_http_version()
        if version not in ("1.0", "1.1") or not 200 <= status <= 599:
            raise _WrongError(f"its status line has HTTP/{version} and {status}")
        if codings and (codings != [b"chunked"] or lengths or version == "1.0"):
            raise _WrongError("its body has two lengths, or an unknown coding")
        if len(lengths) > 1 or any(not value.isdigit() for value in lengths):
            raise _WrongError("its body has two lengths, or a wrong one")
        if status in _WITHOUT_BODY:
            return None
        return int(lengths[0]) if lengths else None

    def on_body(self, body: bytes) -> None:
        self._has_progress = True
        self._parts.append(body)
        self._num_bytes += len(body)
        if self._num_bytes > HIGH_BYTES and not self._is_paused and self.is_open:
            self._is_paused = True
            self._transport.pause_reading()
        self._news.set()

    def on_message_complete(self) -> None:
        if self._is_interim:
            self._is_interim = False
            return
        self._has_progress = self._is_complete = True
        self._keeps_alive = bool(self._parser.should_keep_alive())
        self._news.set()

    # failures

    def _fail(self, message: str, *, is_late: bool = False) -> None:
        """Note why there is no whole response, and close the connection."""
        if not self._is_complete and self._failure is None:
            self._failure = UpstreamError(message, is_late=is_late)
            self._news.set()
        self.close()

    def _check_silence(self, seconds: float) -> None:
        self._timer = None
        if self._is_complete:
            return
        rest = seconds - (self._loop.time() - self._heard)
        if self._is_paused:  # its client does not read, which has a limit of its own
            rest = seconds
        if rest <= 0:
            self._fail(f"it sent nothing for {seconds:g} s", is_late=True)
        else:
            self._timer = self._loop.call_later(rest, self._check_silence, seconds)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
