"""The ASGI application: checks, routes, answers, counts and logs every request."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any

from octavo.transport.answer import Answer, AsgiAnswer, Receive, RequestHead, Scope, Send
from octavo.transport.context import HttpContext
from octavo.transport.dialect import Dialect
from octavo.transport.errors import ApiError, ClientGoneError, internal
from octavo.transport.exchange import HttpExchange
from octavo.transport.response import Response
from octavo.transport.route import RouteTable

log = logging.getLogger(__name__)

_NAMES = re.compile(r"[a-z0-9_-]+( *, *[a-z0-9_-]+)*", re.IGNORECASE)  # of headers
_USUAL_NAMES = "authorization, content-type, x-api-key, x-request-id, last-event-id"


class Application:
    """The application of one socket; the admin socket has another one over the same server."""

    def __init__(
        self,
        server: HttpContext,
        routes: RouteTable,
        dialect: Dialect,
        make: Callable[[Any, RequestHead, Answer, Dialect, Receive], HttpExchange],
        *,
        checks_access: bool = True,
    ) -> None:
        self.server = server
        self._routes = routes
        self._dialect = dialect  # of routes without one
        self._make = make  # the exchange that handlers take
        self._checks_access = checks_access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        head, answer = RequestHead.of(scope), AsgiAnswer(scope, send)
        await self.answer(self._make(self.server, head, answer, self._dialect, receive))

    async def serve(self, response: Response) -> None:
        """Answer a request of the server's own HTTP."""
        head, receive = response.head, response.receive
        await self.answer(self._make(self.server, head, response, self._dialect, receive))

    async def answer(self, exchange: HttpExchange) -> None:
        """Answer a request, whatever becomes of it; count it and log it."""
        try:
            await self._answer(exchange)
        except ClientGoneError as error:
            _forget_frames(error)
            self.server.metrics.disconnects.add()
        except asyncio.CancelledError:  # the server is stopping
            exchange.cut()
        except Exception:
            log.exception("request %s: the response could not be written", exchange.request_id)
            exchange.cut()
        finally:
            self._count(exchange)

    async def _answer(self, exchange: HttpExchange) -> None:
        try:
            route = self._routes.find(exchange)
            dialect = self._routes.dialect_near(exchange.path) if route is None else route.dialect
            if dialect is not None:
                exchange.dialect = dialect  # of errors too
            if self._checks_access:
                asked = exchange.path, exchange.headers, exchange.method
                self.server.access.check_address(*asked)
                if "origin" in exchange.headers and self._is_preflight(exchange):
                    await exchange.respond(b"", headers=_preflight(exchange))
                    return
                exchange.owner = self.server.access.check_key(*asked)
            if route is None:
                raise self._routes.error(exchange)
            exchange.route = route.path
            await route.handler(exchange)
        except ClientGoneError:
            raise
        except ApiError as error:
            _forget_frames(error)
            await _respond_error(exchange, error)
        except Exception:
            log.exception("request %s failed", exchange.request_id)
            await _respond_error(exchange, internal(exchange.request_id))

    def _is_preflight(self, exchange: HttpExchange) -> bool:
        """Add the headers for pages of allowed origins; return whether this is a preflight."""
        origin = exchange.headers["origin"]
        if not self.server.access.is_listed(origin):
            return False
        exchange.extra_headers += [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (
                b"access-control-expose-headers",
                b"x-request-id, retry-after, x-octavo-unknown-fields",
            ),
            (b"vary", b"Origin"),
        ]
        return exchange.method == "OPTIONS" and "access-control-request-method" in exchange.headers

    def _count(self, exchange: HttpExchange) -> None:
        status = "none" if exchange.status is None else str(exchange.status)
        self.server.metrics.responses.add(1, exchange.route, status)
        if log.isEnabledFor(logging.INFO):
            took = 1000 * (self.server.clock() - exchange.began)
            # repr: a path may contain control characters for a terminal or a log reader.
            values = (exchange.method[:16], exchange.path[:200], status, took, exchange.request_id)
            log.info("%s %r %s %.1f ms %s", *values)


def _preflight(exchange: HttpExchange) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers of the answer to a preflight.

    A page that may call may send any headers: each library has some of its own.
    """
    asked = exchange.headers.get("access-control-request-headers", "")
    names = asked if _NAMES.fullmatch(asked) else _USUAL_NAMES
    return (
        (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
        (b"access-control-allow-headers", names.encode("latin-1")),
        (b"access-control-max-age", b"600"),
    )


def _forget_frames(error: Exception) -> None:
    """Release the frames of an error, and with them the body of its request.

    A frame on its way has the error in a variable: a cycle that would keep all of it until the next
    garbage collection, and hostile clients could fill the memory in between.
    """
    error.__traceback__ = error.__context__ = error.__cause__ = None


async def _respond_error(exchange: HttpExchange, error: ApiError) -> None:
    """Send the error; after the status line that is possible only in a stream."""
    if exchange.status is None:
        await exchange.fail(error)
    elif exchange.error_frames is not None and not exchange.is_finished:
        await exchange.write(exchange.error_frames(error))
    elif not exchange.is_finished:
        exchange.cut()


async def _lifespan(receive: Receive, send: Send) -> None:
    """Acknowledge the events; the server starts and stops by itself."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
