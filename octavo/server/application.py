"""The application of one socket, made of its routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from octavo.server.known_routes import missing_feature
from octavo.server.routes import DEFAULT_DIALECT, served
from octavo.serving.exchange import Exchange
from octavo.serving.large_bodies import read_body
from octavo.serving.server import Server
from octavo.transport.app import Application
from octavo.transport.dialect import Dialect
from octavo.transport.route import Route, RouteTable

if TYPE_CHECKING:
    from octavo.workers.program import ReadBodies


def application(
    server: Server,
    routes: Sequence[Route] | None = None,
    dialect: Dialect = DEFAULT_DIALECT,
    *,
    checks_access: bool = True,
) -> Application:
    """Return the application with some routes, or with all that the settings allow."""
    table = RouteTable(served(server.config) if routes is None else routes, missing_feature)
    return Application(server, table, dialect, Exchange, checks_access=checks_access)


def body_reader() -> ReadBodies:
    """Return the reader of large bodies, in a worker: all dialects have been imported with it."""
    return read_body
