"""The routes about the server itself: health, version, metrics, explanations of requests."""

from __future__ import annotations

from octavo.observe.exposition import CONTENT_TYPE
from octavo.server.http.errors import ApiError
from octavo.server.http.exchange import Call
from octavo.server.server import VERSION


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
    server = call.server
    text = server.metrics.text(server.model_name, server.config.metrics_names)
    await call.respond(text, kind=CONTENT_TYPE)


async def explain(call: Call) -> None:
    """Of one's own requests alone: another key's are not there."""
    server = call.server
    if not server.config.enable_explain:
        raise ApiError(404, "explanations are switched off here", code="explain_disabled")
    record = server.recent.find(call.parameter, call.owner)
    if record is None:
        raise ApiError(
            404,
            f"no request {call.parameter[:128]!r} is remembered; the last "
            f"{server.config.num_explained} are",
            code="request_not_found",
        )
    await call.respond_json(record.explain(server.clock()))
