"""Passes a request on to a server, and its response back, part by part.

A request is given to another server only where the first has certainly not begun it: there was no
connection, or the answer is a 503 with a time after which to come again. Nothing was sent to the
client then. Everything else that fails is an error, and the client decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from octavo.dialects.common.dialect import error_body, frame
from octavo.route.asked import Asked
from octavo.route.client import ResponseHead, UpstreamConnection, UpstreamError
from octavo.route.headers import KEYS, request_head, response_headers
from octavo.route.places import Place
from octavo.route.pool import UnreachableError
from octavo.route.router import Router
from octavo.route.upstream import Upstream
from octavo.transport.answer import Headers
from octavo.transport.deadline import RequestTask
from octavo.transport.errors import ApiError, invalid
from octavo.transport.exchange import HttpExchange

log = logging.getLogger(__name__)

MAX_TRIES = 3  # servers that a request is given to, one after the other
EVENT_ROUTES = ("/v1/chat/completions", "/v1/completions")  # whose clients know such an error
END_OF_EVENT = b"\n\n"


class Proxy:
    """The handler of all routes that servers answer."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def answer(self, exchange: HttpExchange) -> None:
        """Answer a request with what a server answers."""
        router, config = self._router, self._router.config
        if router.is_draining:
            refusal = router.refusal()
            assert refusal is not None, "it is draining"
            raise refusal
        query = exchange.head.query
        if not (query.isascii() and query.isprintable()) or " " in query:
            raise invalid("the query of the address has characters that must be escaped")
        with router.places.place(exchange.owner, num_bytes(exchange)) as place:
            body = await exchange.body()
            place.hold(len(body))  # its length may not have been announced
            asked = await router.bodies.read(body, exchange.headers, self._tenant(exchange))
            task = RequestTask(exchange)
            router.tasks.add(task)
            try:
                work = _Passage(router, exchange, asked, body, place).run()
                del body  # the passage lets go of it when the answer has begun
                await task.run(work, config.max_request_seconds)
            finally:
                router.tasks.discard(task)

    def _tenant(self, exchange: HttpExchange) -> str:
        """Return by whom servers know the client; theirs share no prefixes with others'."""
        if self._router.config.upstream_api_key:
            return ""
        headers = exchange.headers
        return headers.get("authorization", "") + "\n" + headers.get("x-api-key", "")


class _NotBegun(NamedTuple):
    """The fact that a server has certainly not begun a request."""

    reason: str  # for the metrics
    error: ApiError  # if no other server is left


class _Passage:
    """The way of one request to a server, or to one after the other, and of the answer back."""

    def __init__(
        self, router: Router, exchange: HttpExchange, asked: Asked, body: bytes, place: Place
    ) -> None:
        self._router = router
        self._exchange = exchange
        self._asked = asked
        self._body = body
        self._place = place
        self._tried: list[Upstream] = []

    async def run(self) -> None:
        """Give the request to servers until one answers it."""
        self._asked = await self._router.with_tokens(self._asked, self._exchange, self._body)
        upstream = await self._router.server_for(self._asked)
        while True:
            self._tried.append(upstream)
            failure = await self._try(upstream)
            if failure is None:
                return
            others = self._others()
            if not others:
                raise failure.error
            self._router.metrics.retries.add(1, failure.reason)
            upstream = self._router.chosen(self._asked, others)

    def _others(self) -> list[Upstream]:
        """Return the servers that may be tried after those that were."""
        if len(self._tried) >= MAX_TRIES or self._router.is_draining:
            return []
        return self._router.usable(self._asked, self._tried)

    async def _try(self, upstream: Upstream) -> _NotBegun | None:
        """Let a server answer; return why it has certainly not begun, if that is so."""
        metrics, asked = self._router.metrics, self._asked
        known = upstream.candidate(asked).num_cached
        with upstream.having(asked) as begin:
            try:
                connection = await upstream.pool.take()
            except UnreachableError as error:
                upstream.note_failure()
                metrics.requests.add(1, upstream.name, "none")
                log.info("request %s: %s: %s", self._exchange.request_id, upstream.name, error)
                return _NotBegun("unreachable", _failed("no server could be reached", error))
            upstream.note_given(asked)
            metrics.prompt_tokens.add(asked.size, upstream.name)
            metrics.known_tokens.add(known, upstream.name)
            try:
                connection.send(
                    self._head(upstream), self._body, self._router.config.silent_seconds
                )
                head = await self._answer_of(upstream, connection)
                if _is_refusal(head) and self._others():
                    return _NotBegun("refused", _failed("each server is busy", None))
                self._body = b""
                self._place.hold(0)
                await self._pass_back(head, connection, begin)
            finally:
                upstream.pool.give_back(connection)
        return None

    def _head(self, upstream: Upstream) -> bytes:
        exchange, address = self._exchange, upstream.address
        own: Headers = [
            (b"host", address.authority.encode()),
            (b"content-length", b"%d" % len(self._body)),
            (b"x-request-id", exchange.request_id.encode()),
        ]
        key = self._router.config.upstream_api_key
        if key:
            own.append((b"authorization", b"Bearer " + key.encode()))
        # The route's own path, so that nothing of the client's decides which one is called.
        target = address.base + exchange.route
        if exchange.head.query:
            target += "?" + exchange.head.query
        line = b"%b %b HTTP/1.1" % (exchange.method.encode(), target.encode())
        return request_head(line, exchange.head, own, KEYS if key else frozenset())

    async def _answer_of(self, upstream: Upstream, connection: UpstreamConnection) -> ResponseHead:
        """Return the head of a server's response; raise the error for one that gives none."""
        try:
            head = await connection.head()
        except UpstreamError as error:
            self._note_failure(upstream, error)
            raise _failed(
                "the server has taken the request and not answered; it may have begun", error
            ) from None
        upstream.note_answer()
        self._router.metrics.requests.add(1, upstream.name, f"{head.status // 100}xx")
        return head

    def _note_failure(self, upstream: Upstream, error: UpstreamError) -> None:
        upstream.note_failure()
        self._router.metrics.requests.add(1, upstream.name, "none")
        request_id = self._exchange.request_id
        log.warning("request %s: %s: %s", request_id, upstream.name, error)

    async def _pass_back(
        self, head: ResponseHead, connection: UpstreamConnection, begin: Callable[[], None]
    ) -> None:
        """Send a server's response to the client, each part when the client has read the last."""
        exchange = self._exchange
        await exchange.start(head.status, response_headers(head.headers, head.length))
        last, is_chunked = b"", head.length is None
        try:
            while part := await connection.part():
                begin()
                if is_chunked and not exchange.must_wait():  # as for nearly each token
                    exchange.write_now(part)
                else:
                    await exchange.write(part, more=True)
                last = (last + part[-len(END_OF_EVENT) :])[-len(END_OF_EVENT) :]
        except (UpstreamError, asyncio.CancelledError) as error:
            is_between = last in (b"", END_OF_EVENT)  # two events, or before the first
            if exchange.route in EVENT_ROUTES and is_between and _is_of_events(head):
                exchange.error_frames = error_event
            if isinstance(error, asyncio.CancelledError):  # the client has left, or must end
                raise
            whose = exchange.request_id, self._tried[-1].name
            log.warning("request %s: the answer of %s has broken off: %s", *whose, error)
            raise _failed("the server's answer has broken off", error) from None
        await exchange.write(b"", more=False)


def _is_of_events(head: ResponseHead) -> bool:
    """Return whether a body is of server-sent events as they are, to which one can be added."""
    kind = head.value(b"content-type") or b""
    is_plain = head.value(b"content-encoding") is None
    return head.length is None and is_plain and kind.startswith(b"text/event-stream")


def error_event(error: ApiError) -> bytes:
    """Return an error as an event, which clients of OpenAI's streams understand."""
    return frame(error_body(error))


def _is_refusal(head: ResponseHead) -> bool:
    """Return whether a server says that it has not begun, and may be asked again."""
    return head.status == 503 and head.value(b"retry-after") is not None


def _failed(what: str, error: UpstreamError | None) -> ApiError:
    """Return the error for a server that gave no answer; its own words stay in the log."""
    if error is not None and error.is_late:
        return ApiError(504, f"{what}, within its time", code="upstream_timeout")
    return ApiError(502, what, code="upstream_failed")


def num_bytes(exchange: HttpExchange) -> int:
    """Return the size of a request's body, or the most that it may have."""
    most = exchange.server.config.max_body_bytes
    length = exchange.headers.get("content-length", "")
    return min(int(length[:20]), most) if length.isdecimal() else most
