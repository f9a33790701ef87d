"""A request of the server's own: a route answers it as if a client had sent it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from octavo.serving.exchange import Exchange
from octavo.serving.server import Server
from octavo.transport.answer import Headers, KeptAnswer, RequestHead
from octavo.transport.dialect import Dialect
from octavo.transport.errors import ApiError, ClientGoneError, internal
from octavo.transport.route import Route

log = logging.getLogger(__name__)

# The routes that batches may ask for, where the server has them.
_URLS = frozenset(
    {
        *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
        *("/v1/embeddings", "/pooling", "/score", "/v1/score", "/classify"),
        *("/rerank", "/v1/rerank", "/v2/rerank"),
    }
)


def batch_urls(routes: Sequence[Route]) -> Collection[str]:
    """Return the paths that batches may ask for."""
    return {each.path for each in routes if each.method == "POST" and each.path in _URLS}


@dataclass(frozen=True, slots=True)
class Reply:
    """The response of a route."""

    status: int
    body: bytes

    @property
    def is_well(self) -> bool:
        """True unless the body is an error."""
        return 200 <= self.status < 300


class Calls:
    """The routes of one server, for requests that no connection has brought."""

    def __init__(self, server: Server, routes: Sequence[Route], default: Dialect) -> None:
        self.server = server
        self._default = default
        self.urls = batch_urls(routes)
        self._routes = {each.path: each for each in routes if each.method == "POST"}

    async def ask(
        self, path: str, body: bytes, *, name: str, owner: str, is_background: bool
    ) -> Reply:
        """Return the response to a request under this id, with the rights of this key."""
        kept = _Response()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "x-request-id": name,
        }
        route = self._routes[path]
        dialect = route.dialect or self._default
        exchange = Exchange(self.server, RequestHead("POST", path, headers), kept, dialect)
        exchange.give(body)
        exchange.owner, exchange.route = owner, route.path
        exchange.is_background = is_background
        try:
            await route.handler(exchange)
        except ClientGoneError:  # there is no client that could leave
            raise asyncio.CancelledError from None
        except ApiError as error:
            await exchange.fail(error)
        except Exception:
            log.exception("request %s failed", name)
            await exchange.fail(internal(name))
        return Reply(kept.status, b"".join(kept.parts))


class _Response(KeptAnswer):
    """The response of a route, as its parts come."""

    def __init__(self) -> None:
        self.status = 0
        self.parts: list[bytes] = []

    async def begin(self, status: int, headers: Headers) -> None:
        self.status = status

    def write_now(self, part: bytes) -> None:
        self.parts.append(part)
