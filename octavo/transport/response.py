"""One request over HTTP/1.1 as it arrives, and the response to it as it is written."""

from __future__ import annotations

import asyncio
import re
from collections.abc import MutableMapping
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from octavo.transport.answer import Headers, RequestHead

if TYPE_CHECKING:
    from octavo.transport.connection import Connection

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_WITHOUT_BODY = (204, 304)  # statuses whose responses have none
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Date:
    """The date in the head of responses, which is written anew each second."""

    def __init__(self) -> None:
        self._line = b""
        self._until = 0.0

    def line(self, now: float) -> bytes:
        """Return the header's line; `now` is the event loop's time."""
        if now >= self._until:
            self._until = now + 1.0
            self._line = b"date: %b\r\n" % formatdate(usegmt=True).encode()
        return self._line


_DATE = Date()


class Response:
    """One request and its response, on the connection that it came by.

    This is an `Answer` of the server's own, and it has ASGI's `receive` and `send`.
    """

    def __init__(
        self,
        connection: Connection,
        head: RequestHead,
        *,
        keeps_alive: bool,
        expects_continue: bool,
    ) -> None:
        self._connection = connection
        self.head = head
        self.keeps_alive = keeps_alive  # the connection, for another request
        self._expects_continue = expects_continue
        self.body = bytearray()  # what has arrived and was not received yet
        self.more_body = True
        self.news = asyncio.Event()  # a part of the body, its end, or the end of all
        self.disconnected = False
        self.started = False
        self.complete = False
        self.is_cut = False  # the application has ended it where it is
        self.is_chunked = False
        self._num_left = 0  # bytes of a body whose length was announced
        self.num_ahead = 0  # bytes of the response's beginning that are written already

    # the request

    async def receive(self) -> MutableMapping[str, Any]:
        """Return the next part of the body, or that the client has left, as ASGI has it."""
        if self._expects_continue:
            self._expects_continue = False
            self._connection.transport.write(_CONTINUE)
        if not (self.disconnected or self.complete):
            self._connection.resume_reading()
            await self.news.wait()
            self.news.clear()
        if self.disconnected or self.complete:
            return {"type": "http.disconnect"}
        body, self.body = bytes(self.body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    def disconnect(self) -> None:
        """Let the application see that the client has gone."""
        if not self.complete:
            self.disconnected = True
            self.news.set()

    # the response

    async def begin(self, status: int, headers: Headers) -> None:
        """Write the status line and the headers."""
        if not await self._is_open():
            return
        if self.started:
            raise RuntimeError("a response has one status")
        self.started, self._expects_continue = True, False
        lines = [_status_line(status), _DATE.line(self._connection.loop.time())]
        has_length = closes = False
        for name, value in headers:
            if name == b"content-length":
                self._num_left, has_length = int(value), True
            elif name == b"transfer-encoding":
                continue  # it is ours to choose
            elif name == b"connection" and value.lower() == b"close":
                closes, self.keeps_alive = True, False
            lines.append(b"%b: %b\r\n" % (name, value))
        if not (self.keeps_alive or closes):
            lines.append(b"connection: close\r\n")
        if not has_length and self.head.method != "HEAD" and status not in _WITHOUT_BODY:
            self.is_chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        self._connection.transport.write(b"".join(lines)[self.num_ahead :])

    async def write(self, part: bytes, *, more: bool) -> None:
        """Write a part of the body, when the client has read enough of those before."""
        if not await self._is_open():
            return
        if not self.started or self.complete:
            raise RuntimeError("a body follows a status, and nothing follows its end")
        if self.head.method == "HEAD":
            self._num_left = 0
        elif self.is_chunked:
            end = b"" if more else b"0\r\n\r\n"
            chunk = b"%x\r\n%b\r\n" % (len(part), part) if part else b""
            self._connection.transport.write(chunk + end)
        else:
            self._num_left -= len(part)
            if self._num_left < 0:
                raise RuntimeError("the body is longer than its content-length")
            self._connection.transport.write(part)
        if not more:
            if self._num_left:
                raise RuntimeError("the body is shorter than its content-length")
            self._end()

    def write_now(self, part: bytes) -> None:
        """Write a part of a stream at once, while `must_wait` is False."""
        if self.disconnected or self._connection.inner.is_closing():
            return  # as the start of the response was dropped
        assert self.is_chunked, "the response must have started, without a length"
        assert not self.complete, "the response must not have ended"
        self._connection.inner.write(b"%x\r\n%b\r\n" % (len(part), part))

    def must_wait(self) -> bool:
        """Return whether the next write must wait until the client has read earlier data."""
        return self._connection.is_full

    is_stalled = must_wait

    def cut(self) -> None:
        """Close the connection at once."""
        self.is_cut = True
        self._connection.transport.abort()

    async def _is_open(self) -> bool:
        """Wait until there is room for a write; return whether the client is still there."""
        if self._connection.is_full and not self.disconnected:
            await self._connection.drained()
        return not self.disconnected

    def _end(self) -> None:
        self.complete = True
        self.news.set()
        if not self.keeps_alive:
            self._connection.transport.close()
        self._connection.on_response_complete()

    # for middlewares

    def scope(self) -> dict[str, Any]:
        """Return the request's scope, as ASGI has it."""
        connection, head = self._connection, self.head
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": head.version,
            "server": connection.server,
            "client": connection.client,
            "scheme": connection.scheme,
            "root_path": "",
            "method": head.method,
            "path": head.path,
            "raw_path": head.target.partition(b"?")[0],
            "query_string": head.query.encode("latin-1"),
            "headers": head.pairs,
            "extensions": {"octavo.cut": {"call": self.cut}},
        }

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Write what a message of ASGI says; raise RuntimeError for one that is wrong."""
        if message["type"] == "http.response.start":
            headers = [(name.lower(), value) for name, value in message.get("headers", ())]
            for name, value in headers:
                if not _NAME.fullmatch(name) or b"\r" in value or b"\n" in value or b"\0" in value:
                    raise RuntimeError(f"{name!r} is no header that can be sent")
            await self.begin(message["status"], headers)
        elif message["type"] == "http.response.body":
            await self.write(message.get("body", b""), more=message.get("more_body", False))
        else:
            raise RuntimeError(f"there is no message {message['type']!r} to send over HTTP")


def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase.encode()
    except ValueError:  # of a middleware's own
        phrase = b""
    return b"HTTP/1.1 %d %b\r\n" % (status, phrase)
