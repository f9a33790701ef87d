"""The server's load in a header of a response, for load balancers that ask for it (ORCA)."""

from __future__ import annotations

from typing import Any

from octavo.serving.exchange import Exchange
from octavo.transport.answer import Headers
from octavo.transport.exchange import encode

ASKED = "endpoint-load-metrics-format"
_NAME = b"endpoint-load-metrics"


def add_load(exchange: Exchange) -> None:
    """Let the response have the load at the time of its status line, if the request asks for it."""
    if exchange.headers.get(ASKED, "").lower() in ("text", "json"):
        exchange.late_headers = _report


def _report(exchange: Exchange) -> Headers:
    """Return the header in the format that the request names."""
    load: dict[str, Any] = exchange.server.metrics.load()
    if exchange.headers[ASKED].lower() == "json":
        return [(_NAME, b"JSON " + encode({"named_metrics": load}))]
    listed = ", ".join(f"named_metrics.{name}={value}" for name, value in load.items())
    return [(_NAME, f"TEXT {listed}".encode())]
