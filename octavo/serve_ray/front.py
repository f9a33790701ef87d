"""The front: checks requests, and passes each to a replica through Ray Serve.

A request whose replica ends before anything of an answer has come is given to another: these routes
compute from a body alone, so that beginning twice costs time and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from ray.exceptions import RayError, RayTaskError, TaskCancelledError
from ray.serve.exceptions import RayServeException

from octavo.dialects.common.dialect import OPENAI
from octavo.observe.exposition import CONTENT_TYPE, Gauge, expose
from octavo.observe.http_metrics import HttpMetrics
from octavo.options.transport import is_loopback
from octavo.route.asked import Asked, BodyReader
from octavo.route.headers import response_headers
from octavo.route.places import Place, Places
from octavo.route.proxy import END_OF_EVENT, EVENT_ROUTES, error_event, num_bytes
from octavo.route.routes import READY, not_passed_on, passed_on
from octavo.serve_ray.ledger import LEDGER
from octavo.serve_ray.passed import Head, Passed
from octavo.serve_ray.settings import RayApplicationSettings, read
from octavo.transport.answer import Headers, Receive, Scope, Send, path_within
from octavo.transport.app import Application
from octavo.transport.auth import AccessControl
from octavo.transport.deadline import RequestTask
from octavo.transport.errors import ApiError, unavailable
from octavo.transport.exchange import HttpExchange
from octavo.transport.route import Route, RouteTable

log = logging.getLogger(__name__)

MAX_TRIES = 3  # replicas that a request is given to, one after the other
HEALTH_SECONDS = 5.0  # for a replica to say that it is ready
_NO_REQUEST = Asked("", b"", array("q"), 0)


class Front:
    """The deployment that Ray Serve's proxies give the requests of clients."""

    def __init__(self, arguments: Mapping[str, Any], replicas: Any) -> None:
        settings = read(arguments)
        self._answers = Answers(
            settings, replicas.options(stream=True, method_name="answer"), time.monotonic
        )

    def __serve_build_asgi_app__(self) -> Guard:  # the name is Ray Serve's
        return Guard(self._answers)


class Answers:
    """Implements `transport.context.HttpContext`, and answers by means of the replicas."""

    digests_bodies = False  # no request can be continued here

    def __init__(
        self, settings: RayApplicationSettings, replicas: Any, clock: Callable[[], float]
    ) -> None:
        self.config = config = settings.serve.server
        self.clock = clock
        self.access = AccessControl(config)
        ray = settings.ray
        self.places = Places(ray.max_open_requests, ray.max_held_bytes, len(config.api_keys))
        self.metrics = FrontMetrics(self.places)
        self._bodies = BodyReader()
        self._replicas = replicas

    @property
    def wall_time(self) -> Callable[[], int]:
        """The time of answers, which a front writes in none."""
        return lambda: 0

    def application(self) -> Application:
        """Return what answers clients."""
        routes = [
            Route("GET", path, self.ready, "Say whether a replica is ready") for path in READY
        ]
        routes += [
            Route("GET", "/health/live", self.live, "Say that the front runs"),
            Route("GET", "/metrics", self.exposition, "Return the metrics of this front"),
            Route("GET", "/v1/models", self.ask, "List the models"),
            Route("GET", "/v1/models/{id}", self.ask, "Describe a model"),
        ]
        routes += passed_on(self.answer, "Let a replica answer")
        return Application(self, RouteTable(routes, not_passed_on), OPENAI, HttpExchange)

    async def live(self, exchange: HttpExchange) -> None:
        """Respond that the front runs, which the answer itself proves."""
        await exchange.respond_json({"status": "live"})

    async def exposition(self, exchange: HttpExchange) -> None:
        """Respond with the metrics of this front."""
        await exchange.respond(self.metrics.text(), kind=CONTENT_TYPE)

    async def ready(self, exchange: HttpExchange) -> None:
        """Respond whether a replica is ready, as it says itself."""
        try:
            async with asyncio.timeout(HEALTH_SECONDS):
                await self._pass(exchange, _NO_REQUEST, b"", None)
        except TimeoutError:
            if exchange.status is not None:
                raise
            raise unavailable("no replica is ready", "no_server", 1) from None

    async def ask(self, exchange: HttpExchange) -> None:
        """Let any replica answer a question without a body."""
        with self.places.place(exchange.owner, 0) as place:
            await self._pass(exchange, _NO_REQUEST, b"", place)

    async def answer(self, exchange: HttpExchange) -> None:
        """Answer a request with what a replica answers."""
        with self.places.place(exchange.owner, num_bytes(exchange)) as place:
            body = await exchange.body()
            place.hold(len(body))
            asked = await self._bodies.read(body, exchange.headers, exchange.owner)
            work = self._pass(exchange, asked, body, place)
            del body  # the passage lets go of it when the answer has begun
            await RequestTask(exchange).run(work, self.config.max_request_seconds)

    async def _pass(
        self, exchange: HttpExchange, asked: Asked, body: bytes, place: Place | None
    ) -> None:
        """Give a request to replicas until one has begun to answer it."""
        for left in reversed(range(MAX_TRIES)):
            number = LEDGER.begin(asked)
            answer = self._replicas.remote(_passed(number, exchange, body))
            try:
                head = await _next(answer)
                LEDGER.note_answer(number)
                body = b""
                if place is not None:
                    place.hold(0)
                await _send_back(exchange, head, answer)
                return
            except LostError as error:
                log.warning("request %s: %s", exchange.request_id, error)
                if exchange.status is not None or not left:
                    raise ApiError(502, str(error), code="upstream_failed") from None
            finally:
                LEDGER.end(number)
                answer.cancel()


class LostError(Exception):
    """An answer that has not come to its end, because its replica has ended or failed."""


async def _next(answer: Any) -> Any:
    """Return the next part of an answer, or None at its end; raise LostError if there is none."""
    try:
        return await anext(answer)
    except StopAsyncIteration:
        return None
    except TaskCancelledError:
        raise asyncio.CancelledError from None
    except (RayTaskError, RayError, RayServeException) as error:
        log.info("a replica gives no answer: %s", error)
        raise LostError("the replica that had the request has ended or failed") from None


async def _send_back(exchange: HttpExchange, head: Head, answer: Any) -> None:
    """Send a replica's answer to the client, each part when the client has read the last."""
    length = next((int(value) for name, value in head.headers if name == b"content-length"), None)
    kind = next((value for name, value in head.headers if name == b"content-type"), b"")
    await exchange.start(head.status, response_headers(head.headers, length))
    part, is_of_events = b"", length is None and kind.startswith(b"text/event-stream")
    try:
        while (more := await _next(answer)) is not None:
            part = more
            await exchange.write(part, more=True)
    except LostError:
        if is_of_events and exchange.route in EVENT_ROUTES and part.endswith(END_OF_EVENT):
            exchange.error_frames = error_event
        raise
    await exchange.write(b"", more=False)


def _passed(number: int, exchange: HttpExchange, body: bytes) -> Passed:
    """Return the request as a replica gets it, with the keys and the headers of its client."""
    headers: Headers = [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in exchange.headers.items()
        if name not in ("content-length", "transfer-encoding", "x-request-id", "origin", "cookie")
    ]
    headers.append((b"content-length", b"%d" % len(body)))
    headers.append((b"x-request-id", exchange.request_id.encode()))
    return Passed(number, exchange.method, exchange.path, exchange.head.query, headers, body)


class Guard:
    """The application, without keys closed to other machines than its proxy's own.

    Ray Serve decides where its proxies listen, so the address of each client is compared.
    """

    def __init__(self, answers: Answers) -> None:
        self._application = answers.application()
        config = answers.config
        self._is_open = bool(config.api_keys) or config.insecure_no_auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        if not self._is_open and not _is_near(scope):
            error = ApiError(
                403,
                "only the machine of this proxy may connect, since there is no API key; start the "
                "application with api_key_file=FILE",
                code="no_api_key",
            )
            body = OPENAI.error_body(error)
            headers = [(b"content-type", b"application/json")]
            headers.append((b"content-length", b"%d" % len(body)))
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": body, "more_body": False})
            return
        # An application may be below a prefix, with which paths come.
        path = path_within(scope.get("root_path", ""), scope["path"])
        sent = _Sent(send)
        await self._application({**scope, "path": path}, receive, sent)
        if sent.has_begun and not sent.is_whole:  # so that its proxy does not end it as a whole one
            raise AnswerBrokenError("the answer has broken off")


class AnswerBrokenError(RuntimeError):
    """An answer of which the client must see that it is not whole."""


class _Sent:
    """The end of an answer at Ray Serve, which knows how far it is."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = self.is_whole = False

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        await self._send(message)
        self.has_begun = True
        if message["type"] == "http.response.body":
            self.is_whole = not message.get("more_body", False)


def _is_near(scope: Scope) -> bool:
    client = scope.get("client")
    return client is not None and is_loopback(str(client[0]))


class FrontMetrics(HttpMetrics):
    """The metrics of a front: its HTTP, and its open requests."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self._own += [
            Gauge("route_open_requests", "Open requests.", lambda: places.num_open),
            Gauge("route_held_bytes", "Bytes of bodies that are held.", lambda: places.num_bytes),
        ]

    def text(self) -> bytes:
        """Return the current exposition."""
        own = [(f"octavo:{metric.name}", metric, ()) for metric in self._own]
        return expose([*own, *self.of_process()])
