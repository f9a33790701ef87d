"""One request and its answer: reading a body under limits, writing a response once, or a stream."""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import msgspec

from octavo.transport.answer import Answer, Headers, Receive, RequestHead, path_within
from octavo.transport.context import HttpContext
from octavo.transport.dialect import STREAM_HEADERS, Dialect
from octavo.transport.errors import ApiError, ClientGoneError

_UNSAFE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")  # in the value of a header
ID = re.compile(r"[A-Za-z0-9._:\-]{1,128}")
_JSON_TYPES = ("application/json", "")
encode = msgspec.json.Encoder().encode


class HttpExchange:
    """One request and its response, in bytes and in the terms of HTTP."""

    def __init__(
        self,
        server: HttpContext,
        head: RequestHead,
        answer: Answer,
        dialect: Dialect,
        receive: Receive | None = None,
    ) -> None:
        self.server = server
        self.dialect = dialect  # of errors before the route is known, and on routes without one
        self.head = head
        self.headers: Mapping[str, str] = head.headers
        self.method = head.method
        self.path = path_within(server.config.root_path, head.path)
        self.route = "other"  # the route's name for metrics, never text of the client's
        self.owner = ""
        self.is_background = False  # the server's own request, which waits for those of clients
        self.has_client = True  # False: a response in the background, which may be read later
        given = self.headers.get("x-request-id", "")
        self.is_named = ID.fullmatch(given) is not None  # by its client
        self.request_id = given if self.is_named else secrets.token_hex(16)
        self.extra_headers: Headers = []
        # Returns headers whose values are those at the time of the status line.
        self.late_headers: Callable[[Any], Headers] = lambda exchange: []
        self.parameter = ""  # the part of the path that matches the route's {id}
        self.status: int | None = None
        self.began = server.clock()
        self.body_digest = b""  # only where requests are durable
        self.created = server.wall_time()  # of the answer, as clients see it
        self.is_finished = False
        # How an error ends the stream that has begun, in whole frames.
        self.error_frames: Callable[[ApiError], bytes] | None = None
        self._receive = receive  # of ASGI; None if the body is given, and no client can leave
        self._answer = answer
        self._body_is_read = False
        self._given: bytes | None = None  # a body that is there, and is to be read
        # These are the answer's own, without a call between: there is one for each token.
        self.must_wait, self.write_now = answer.must_wait, answer.write_now
        self.is_stalled, self.cut = answer.is_stalled, answer.cut

    @property
    def yields(self) -> bool:
        """True if no client waits for the answer, so that it may wait for all others."""
        return self.is_background or not self.has_client

    async def body(self) -> bytes:
        """Return the whole body; refuse it as soon as it is too long or too slow."""
        limit = self.server.config.max_body_bytes
        if self._given is not None:
            body, self._given = self._given, None
            if len(body) > limit:
                raise _too_large(limit)
            return body
        assert self._receive is not None, "a request without a connection has its body"
        self._check_encoding()
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in _JSON_TYPES and not self.dialect.takes_any_kind:
            raise ApiError(415, "the body must be JSON: send 'Content-Type: application/json'")
        announced = self.headers.get("content-length", "0")
        if announced.isdecimal() and int(announced[:20]) > limit:
            raise _too_large(limit)
        parts: list[bytes] = []
        size = 0
        digest = hashlib.blake2b(digest_size=16) if self.server.digests_bodies else None
        try:
            async with asyncio.timeout(self.server.config.body_seconds):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGoneError
                    part = message.get("body", b"")
                    size += len(part)
                    if size > limit:
                        raise _too_large(limit)
                    parts.append(part)
                    if digest is not None:
                        digest.update(part)
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            seconds = self.server.config.body_seconds
            raise ApiError(408, f"the body did not arrive within {seconds:g} s") from None
        self._body_is_read = True
        if digest is not None:
            self.body_digest = digest.digest()
        return b"".join(parts)

    def unread(self, body: bytes) -> None:
        """Let `body` return this once more, for the handler that it is meant for."""
        self._given = body

    def give(self, body: bytes) -> None:
        """Let `body` return what has come without a connection of HTTP."""
        self._given, self._body_is_read = body, True
        if self.server.digests_bodies:
            self.body_digest = hashlib.blake2b(body, digest_size=16).digest()

    async def left(self) -> None:
        """Wait until the client has left; the body must have been read before."""
        if self._receive is None:
            await asyncio.Event().wait()  # there is none that could
            return
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def body_parts(self, limit: int) -> AsyncIterator[bytes]:
        """Yield a long body as it arrives; refuse it when it is too long or pauses for too long."""
        assert self._receive is not None, "only a client sends a long body"
        size, seconds = 0, self.server.config.body_seconds
        self._check_encoding()
        while not self._body_is_read:
            try:
                async with asyncio.timeout(seconds):
                    message = await self._receive()
            except TimeoutError:
                raise ApiError(408, f"no part of the body arrived for {seconds:g} s") from None
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            part = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            self._body_is_read = not message.get("more_body", False)
            yield part

    async def start(self, status: int, headers: Headers) -> None:
        """Send the status line and the headers, once."""
        assert self.status is None, "a response has one status"
        self.status = status
        named = [(b"x-request-id", self.request_id.encode()), *self.extra_headers, *headers]
        named += self.late_headers(self)
        named = [(name, _UNSAFE.sub(_escaped, value)) for name, value in named]
        await self._answer.begin(status, named)

    async def write(self, body: bytes, *, more: bool = False) -> None:
        """Write a part of the body; drop a client that reads nothing for too long."""
        if not self.must_wait():  # as nearly always; a timer for each token would be costly
            await self._answer.write(body, more=more)
        else:
            try:
                async with asyncio.timeout(self.server.config.stall_seconds):
                    await self._answer.write(body, more=more)
            except TimeoutError:
                self.server.metrics.slow_readers.add()
                self.cut()
                raise ClientGoneError from None
        self.is_finished = not more  # only now: a cancelled write ends nothing

    async def respond(
        self,
        *parts: bytes,
        status: int = 200,
        kind: bytes = b"application/json",
        headers: Headers | tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        """Send a whole response, each part when the client has read those before."""
        parts = parts or (b"",)  # a body may be empty, and must end
        length = str(sum(map(len, parts))).encode()
        all_headers = [(b"content-type", kind), (b"content-length", length), *headers]
        if not self._body_is_read and (status == 408 or self._has_endless_body()):
            all_headers.append((b"connection", b"close"))
        await self.start(status, all_headers)
        for number, part in enumerate(parts, 1):
            await self.write(part, more=number < len(parts))

    async def respond_json(self, value: Any, *, status: int = 200) -> None:
        """Send a struct or plain data as a whole response."""
        await self.respond(encode(value), status=status)

    async def fail(self, error: ApiError) -> None:
        """Send an error as a whole response."""
        body = self.dialect.error_body(error)
        await self.respond(body, status=error.status, headers=error.headers)

    def _check_encoding(self) -> None:
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise ApiError(415, "compressed bodies are not accepted; send the body uncompressed")

    def _has_endless_body(self) -> bool:
        """Return whether the rest of the body may be too long for the protocol to skip."""
        length = self.headers.get("content-length", "0")
        is_short = length.isdecimal() and int(length[:20]) <= self.server.config.max_body_bytes
        return not is_short or "transfer-encoding" in self.headers


def _escaped(found: re.Match[bytes]) -> bytes:
    return b"%%%02X" % ord(found[0])


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than {limit} bytes", code="body_too_large")


class ResponseStream:
    """One client's stream, in the frames of its dialect."""

    def __init__(self, exchange: HttpExchange, failure: Callable[[ApiError], bytes]) -> None:
        self._exchange = exchange
        self._failure = failure  # the frames of an error, after which nothing follows
        self._clock = exchange.server.clock
        self._ping = exchange.dialect.ping
        self._ping_seconds = exchange.server.config.ping_seconds
        self._pinger: asyncio.Task[None] | None = None
        self._last = 0.0
        self.is_open = False  # the status line has been sent
        self.waited_seconds = 0.0  # until the client took what was written

    async def open(self) -> None:
        """Send the status line; from now on an error is a frame."""
        exchange = self._exchange
        exchange.error_frames, self.is_open = self._failure, True
        kind = (b"content-type", exchange.dialect.stream_kind.encode())
        await exchange.start(200, [kind, *STREAM_HEADERS])
        self._last = self._clock()
        if self._ping_seconds and self._ping:
            self._pinger = asyncio.get_running_loop().create_task(self._keep_alive())

    def write_now(self, frames: Iterable[bytes], now: float) -> None:
        """Write frames at once; the caller has checked that `must_wait` is False."""
        for frame in frames:
            self._exchange.write_now(frame)
            self._last = now

    async def write(self, frames: Iterable[bytes], *, more: bool = True) -> None:
        """Write frames in one write; without `more` it is the end."""
        part = b"".join(frames)
        if not more:
            self.stop_pinging()
        elif not part:
            return
        began = self._clock()
        await self._exchange.write(part, more=more)
        self._last = self._clock()
        self.waited_seconds += self._last - began

    async def fail(self, error: ApiError) -> None:
        """Send an error, and end the stream."""
        await self.write((self._failure(error),), more=False)

    def stop_pinging(self) -> None:
        """Cancel the task that pings; call it however the stream ends."""
        if self._pinger is not None:
            self._pinger.cancel()
            self._pinger = None

    async def _keep_alive(self) -> None:
        """Send a ping in each long silence, so that no proxy closes the connection."""
        while True:
            rest = self._last + self._ping_seconds - self._clock()
            if rest > 0:
                await asyncio.sleep(rest)
            elif self._exchange.is_stalled():  # a write may wait for the reader already
                await asyncio.sleep(self._ping_seconds)
            else:
                try:
                    await self.write((self._ping,))
                except ClientGoneError:  # the connection is cut, which ends the request too
                    return
