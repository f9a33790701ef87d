"""The ASGI application: every request guarded, routed, answered once, counted and logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from octavo.server.http.errors import ApiError, ClientGoneError, internal
from octavo.server.http.exchange import Call, Receive, Scope, Send
from octavo.server.http.route import Route, find
from octavo.server.http.sse import end_stream
from octavo.server.routes import ROUTES
from octavo.server.server import Server

log = logging.getLogger(__name__)

_PREFLIGHT = (
    (b"access-control-allow-methods", b"GET, POST"),
    (b"access-control-allow-headers", b"authorization, content-type, x-api-key, x-request-id"),
    (b"access-control-max-age", b"600"),
)


class Application:
    """One front door; the admin socket is another over the same server."""

    def __init__(
        self, server: Server, routes: Sequence[Route] = ROUTES, *, guards: bool = True
    ) -> None:
        self.server = server
        self._routes = routes
        self._guards = guards

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        call = Call(self.server, scope, receive, send)
        try:
            await self._answer(call)
        except ClientGoneError:
            self.server.metrics.disconnects.add()
        except asyncio.CancelledError:  # the server ends, and with it this task
            call.cut()
        except Exception:
            log.exception("request %s: the answer could not be written", call.request_id)
            call.cut()
        finally:
            self._count(call)

    async def _answer(self, call: Call) -> None:
        try:
            if self._guards:
                self.server.guard.check_address(call.headers)
                if self._is_preflight(call):
                    await call.respond(b"", status=204, headers=_PREFLIGHT)
                    return
                call.owner = self.server.guard.check_key(call.path, call.headers)
            await find(self._routes, call)(call)
        except ClientGoneError:
            raise
        except ApiError as error:
            await _tell(call, error)
        except Exception:
            log.exception("request %s failed", call.request_id)
            await _tell(call, internal(call.request_id))

    def _is_preflight(self, call: Call) -> bool:
        """Pages of allowed origins may read answers; whether this only asks if they may."""
        origin = call.headers.get("origin", "")
        if not self.server.guard.is_listed(origin):
            return False
        call.extra_headers += [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", b"x-request-id, retry-after"),
            (b"vary", b"Origin"),
        ]
        return call.method == "OPTIONS" and "access-control-request-method" in call.headers

    def _count(self, call: Call) -> None:
        status = "none" if call.status is None else str(call.status)
        self.server.metrics.responses.add(1, call.route, status)
        if log.isEnabledFor(logging.INFO):
            took = 1000 * (self.server.clock() - call.began)
            # repr: a path may hold what a terminal or a log reader would obey.
            what = (call.method[:16], call.path[:200], status, took, call.request_id)
            log.info("%s %r %s %.1f ms %s", *what)


async def _tell(call: Call, error: ApiError) -> None:
    """The error as a response; after a status line all that is left is to break off."""
    if call.status is None:
        await call.fail(error)
    elif call.is_event_stream and not call.is_finished:
        await end_stream(call, error)
    elif not call.is_finished:
        call.cut()


async def _lifespan(receive: Receive, send: Send) -> None:
    """Nothing begins or ends with the application: `octavo.server.run` sees to that."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
