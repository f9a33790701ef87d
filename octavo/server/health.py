"""Whether the server lives, whether it serves, and which version it is."""

from __future__ import annotations

from octavo.server.call import Call
from octavo.server.exposition import CONTENT_TYPE
from octavo.server.state import VERSION


async def live(call: Call) -> None:
    """The event loop turns: it has just answered."""
    await call.respond_json({"status": "live"})


async def ready(call: Call) -> None:
    """Requests are served; 503 with the reason while they are not."""
    refusal = call.server.refusal()
    if refusal is not None:
        raise refusal
    await call.respond_json({"status": "ready"})


async def version(call: Call) -> None:
    """What runs here."""
    await call.respond_json({"version": VERSION})


async def metrics(call: Call) -> None:
    """For Prometheus."""
    await call.respond(call.server.metrics.text(), kind=CONTENT_TYPE)
