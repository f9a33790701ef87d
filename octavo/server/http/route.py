"""What a route is, and how a call finds its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from octavo.server.http.errors import ApiError
from octavo.server.http.exchange import Exchange

Handler = Callable[[Exchange], Awaitable[None]]
Struct = type[msgspec.Struct]


@dataclass(frozen=True, slots=True)
class Route:
    """A path (with at most one hole, `{id}`), a method, and what it takes and gives."""

    method: str
    path: str
    handler: Handler
    summary: str
    request: Struct | None = None
    response: Struct | None = None
    chunk: Struct | None = None  # of a stream
    kind: str = "application/json"

    def match(self, path: str) -> str | None:
        """What stands in the hole; None if the path is another."""
        before, hole, after = self.path.partition("{id}")
        if not hole:
            return "" if path == self.path else None
        if path.startswith(before) and path.endswith(after) and len(path) > len(before + after):
            return path[len(before) : len(path) - len(after)]
        return None


def find(routes: Sequence[Route], exchange: Exchange) -> Handler:
    """The handler for a call; 404 for an unknown path, 405 for another method."""
    method = "GET" if exchange.method == "HEAD" else exchange.method
    methods = []
    for route in routes:
        hole = route.match(exchange.path)
        if hole is None:
            continue
        if route.method == method:
            exchange.parameter = hole
            exchange.route = route.path
            return route.handler
        methods.append(route.method)
    if methods:
        allowed = ", ".join(methods)
        raise ApiError(
            405,
            f"{exchange.path} takes {allowed}",
            code="method_not_allowed",
            headers=((b"allow", allowed.encode()),),
        )
    raise ApiError(
        404, f"there is no such route; {_advice(routes, exchange.path)}", code="not_found"
    )


def _advice(routes: Sequence[Route], path: str) -> str:
    """A client's base URL often lacks the version, or has it twice."""
    bare = path.replace("//", "/")
    while bare.startswith("/v1/"):
        bare = bare.removeprefix("/v1")
    for meant in ("/v1" + bare, bare):
        if any(route.path == meant for route in routes):
            return f"did you mean {meant}? A client's base URL ends in /v1 and no slash"
    return "GET /docs lists those there are"
