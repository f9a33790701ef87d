"""Routes, and how the route of a request is found."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import add
from typing import Any

import msgspec

from octavo.nearest import nearest
from octavo.transport.dialect import Dialect
from octavo.transport.errors import ApiError
from octavo.transport.exchange import HttpExchange

Handler = Callable[[Any], Awaitable[None]]  # of the exchange that the application makes
Struct = type[msgspec.Struct]
PARAMETER = "{id}"
_MOST_SHOWN = 128  # characters of a path
_MOST_PARTS = 8  # of a path, more than those of routes
_LIKENESS = 0.8  # similarity of a path to the route that it may mean
_SAMENESS = 0.95  # and to one that goes before a route without a version


@dataclass(frozen=True, slots=True)
class Route:
    """A path (with at most one parameter, `{id}`), a method, a handler, and its structs."""

    method: str
    path: str
    handler: Handler
    summary: str
    request: Struct | None = None
    request_kind: str = field(default="application/json", kw_only=True)
    response: Struct | None = None
    chunk: Struct | None = None  # of a stream
    kind: str = "application/json"
    other_kinds: tuple[str, ...] = field(default=(), kw_only=True)  # that the answer may have
    may_list: bool = field(default=False, kw_only=True)  # the answer may be a list of responses
    dialect: Dialect | None = None  # None: the application's
    query: tuple[tuple[str, str], ...] = ()  # names and meanings of parameters in the query


class RouteTable:
    """The routes of one application."""

    def __init__(
        self, routes: Sequence[Route], missing_feature: Callable[[str], str | None]
    ) -> None:
        self._routes = routes
        self._missing_feature = (
            missing_feature  # what a path of other servers is for, and is not here
        )
        self._of_path: dict[str, dict[str, Route]] = {}  # by method
        for route in routes:
            self._of_path.setdefault(route.path, {})[route.method] = route
        self._dialects: dict[str, Dialect | None] = {}  # by place; None: of several, or of none
        for route in routes:
            for place in _places(route.path):
                if self._dialects.setdefault(place, route.dialect) is not route.dialect:
                    self._dialects[place] = None
        # The longest first: /files/{id}/content is no file named ID/content.
        self._patterns = sorted((each for each in self._of_path if PARAMETER in each), key=len)
        self._patterns.reverse()

    def find(self, exchange: HttpExchange) -> Route | None:
        """Return the route of a request and set its parameter; None if there is none."""
        method = "GET" if exchange.method == "HEAD" else exchange.method
        routes, parameter = self._at(exchange.path)
        route = routes.get(method)
        if route is not None and parameter:
            exchange.parameter = parameter
        return route

    def _at(self, path: str) -> tuple[Mapping[str, Route], str]:
        """Return the routes of a path by their methods, and its parameter ("" without one)."""
        routes = self._of_path.get(path)
        if routes is not None and PARAMETER not in path:
            return routes, ""
        for pattern in self._patterns:
            parameter = _parameter(pattern, path)
            if parameter is not None:
                return self._of_path[pattern], parameter
        return {}, ""

    def dialect_near(self, path: str) -> Dialect | None:
        """Return the dialect of all routes at a path, below it, or below the first part of it."""
        found = None
        for place in _places(path):
            if place not in self._dialects:
                break
            found = self._dialects[place]
        return found

    def error(self, exchange: HttpExchange) -> ApiError:
        """Return the error for a request without a route: 404 for its path, 405 for its method."""
        here, _ = self._at(exchange.path)
        if here:
            allowed = ", ".join(here)
            return ApiError(
                405,
                f"{exchange.path[:_MOST_SHOWN]} does not allow {exchange.method[:16]}; "
                f"use {allowed}",
                code="method_not_allowed",
                headers=((b"allow", allowed.encode()),),
            )
        missing = self._missing_feature(exchange.path)
        if missing is not None:
            message = f"{exchange.path[:_MOST_SHOWN]} is not supported yet: {missing}"
            return ApiError(404, message, code="unsupported_route")
        advice = _advice(self._routes, exchange.path)
        return ApiError(404, f"there is no such route; {advice}", code="not_found")


def _places(path: str) -> Iterator[str]:
    """Yield /a, /a/b and so on: the first parts of a path."""
    parts = path.split("/", _MOST_PARTS)[1:_MOST_PARTS]
    return accumulate((f"/{part}" for part in parts), add)


def _parameter(pattern: str, path: str) -> str | None:
    """Return the value of a pattern's parameter; None for another path."""
    before, _, after = pattern.partition(PARAMETER)
    if path.startswith(before) and path.endswith(after) and len(path) > len(before + after):
        return path[len(before) : len(path) - len(after)]
    return None


def _advice(routes: Sequence[Route], path: str) -> str:
    """Return a hint; a client's base URL often has no version, has it twice, or has a route."""
    bare = path[:_MOST_SHOWN].replace("//", "/")
    while bare.startswith("/v1/"):
        bare = bare.removeprefix("/v1")
    known = {route.path: route for route in routes}
    doubled = [each for each in known if path.startswith(f"{each}/") and len(each) > 1]
    doubled = [each for each in doubled if path.endswith(each.removeprefix("/v1"))]
    nearly = nearest(path.lower(), known, likeness=_SAMENESS) if path.startswith("/v1/") else []
    for meant in ("/v1" + bare, *nearly, bare, *doubled):
        if meant in known:
            return f"did you mean {meant}? {_base_url(known[meant])}"
    for meant in (path[:_MOST_SHOWN], "/v1" + bare):
        near = nearest(meant.lower(), known, likeness=_LIKENESS)
        if near:
            return f"did you mean {near[0]}?"
    if "/docs" not in known:  # on the administration socket
        return f"there are: {', '.join(known)}"
    return "GET /docs lists all routes"


def _base_url(route: Route) -> str:
    """Return what the base URL is in the settings of the clients of a route."""
    path = "/v1" if route.dialect is None else route.dialect.base_path
    if path:
        return f"A client's base URL ends in {path} and no slash"
    return "The base URL of these clients is the server's address alone, without /v1"
