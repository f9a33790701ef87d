"""The routes about the server itself: health, version, metrics, explanations of requests."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.observe.exposition import (
    CONTENT_TYPE,
    OPENMETRICS_TYPE,
    Named,
    expose,
    wants_openmetrics,
)
from octavo.observe.llama_metrics import NAMES as LLAMA_NAMES
from octavo.serving.exchange import Exchange
from octavo.serving.server import VERSION
from octavo.transport.errors import ApiError, unavailable
from octavo.transport.exchange import HttpExchange


async def live(exchange: Exchange) -> None:
    """Respond that the event loop runs, which the answer itself proves."""
    await exchange.respond_json({"status": "live"})


async def root(exchange: Exchange) -> None:
    """Respond with the server's name: Ollama's programs look here for a server first."""
    await exchange.respond(b"Octavo is running\n", kind=b"text/plain; charset=utf-8")


async def ready(exchange: Exchange) -> None:
    """Respond whether requests are served; 503 with the reason if not.

    The engine must have completed a step lately; if none is known, it must complete one now.
    """
    server = exchange.server
    refusal = server.refusal()
    is_asleep = server.idle is not None and server.idle.is_asleep
    if refusal is None and not is_asleep and not await server.canary.completes_steps():
        seconds = server.config.ready_seconds
        refusal = unavailable(
            f"the engine has completed no step for more than {seconds:g} s, nor one for this "
            f"question within {seconds:g} s (ready_seconds)",
            "engine_not_ready",
        )
    if refusal is not None:
        raise refusal
    await exchange.respond_json({"status": "ready"})


async def version(exchange: Exchange) -> None:
    facts = exchange.server.llm.facts
    arithmetic = {
        "instruction_set": facts.instruction_set,
        "accumulation_order": facts.accumulation_order,
    }
    await exchange.respond_json({"version": VERSION, **arithmetic})


async def metrics(exchange: Exchange) -> None:
    server = exchange.server
    names = server.config.metrics_names
    began = str(int(server.started_at)).encode() if names == LLAMA_NAMES else None
    headers = () if began is None else ((b"process-start-time-unix", began),)
    await respond_metrics(exchange, server.metrics.named(server.model_name, names), headers)


async def respond_metrics(
    exchange: HttpExchange,
    metrics: Sequence[Named],
    headers: tuple[tuple[bytes, bytes], ...] = (),
) -> None:
    """Respond with metrics in the format that the request prefers."""
    openmetrics = wants_openmetrics(exchange.headers.get("accept", ""))
    kind = OPENMETRICS_TYPE if openmetrics else CONTENT_TYPE
    text = expose(metrics, openmetrics=openmetrics)
    await exchange.respond(text, kind=kind, headers=headers)


async def explain(id_prefixes: Sequence[str], exchange: Exchange) -> None:
    """Respond where a request's time went; only the key that sent it can ask.

    The parameter is the request's id, or its answer's, which has one of these prefixes.
    """
    server = exchange.server
    if not server.config.enable_explain:
        raise ApiError(
            404, "explanations are disabled on this server (--no-explain)", code="explain_disabled"
        )
    name = exchange.parameter
    for prefix in id_prefixes:
        name = name.removeprefix(prefix)
    record = server.recent.find(name, exchange.owner)
    if record is None:
        raise ApiError(
            404,
            f"there is no request {exchange.parameter[:128]!r} among the last "
            f"{server.config.num_explained}, which are kept",
            code="request_not_found",
        )
    await exchange.respond_json(record.explain(server.clock()))
