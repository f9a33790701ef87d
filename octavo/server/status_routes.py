"""The routes about the server itself: health, version, metrics, explanations of requests."""

from __future__ import annotations

from octavo.observe.exposition import CONTENT_TYPE
from octavo.server.http.errors import ApiError
from octavo.server.http.exchange import Exchange
from octavo.server.server import VERSION


async def live(exchange: Exchange) -> None:
    """The event loop turns: it has just answered."""
    await exchange.respond_json({"status": "live"})


async def ready(exchange: Exchange) -> None:
    """Requests are served; 503 with the reason while they are not."""
    refusal = exchange.server.refusal()
    if refusal is not None:
        raise refusal
    await exchange.respond_json({"status": "ready"})


async def version(exchange: Exchange) -> None:
    """What runs here."""
    await exchange.respond_json({"version": VERSION})


async def metrics(exchange: Exchange) -> None:
    """For Prometheus."""
    server = exchange.server
    text = server.metrics.text(server.model_name, server.config.metrics_names)
    await exchange.respond(text, kind=CONTENT_TYPE)


async def explain(exchange: Exchange) -> None:
    """Of one's own requests alone: another key's are not there."""
    server = exchange.server
    if not server.config.enable_explain:
        raise ApiError(404, "explanations are switched off here", code="explain_disabled")
    record = server.recent.find(exchange.parameter, exchange.owner)
    if record is None:
        raise ApiError(
            404,
            f"no request {exchange.parameter[:128]!r} is remembered; the last "
            f"{server.config.num_explained} are",
            code="request_not_found",
        )
    await exchange.respond_json(record.explain(server.clock()))
