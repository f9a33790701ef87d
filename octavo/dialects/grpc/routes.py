"""The table of the gRPC calls, and those that do not use the model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from octavo.dialects.grpc import inference
from octavo.dialects.grpc.dialect import SERVICE, decode_message, frame
from octavo.dialects.grpc.messages import messages
from octavo.dialects.grpc.schema import RpcAbortRequest, RpcEmbedRequest, RpcGenerateRequest
from octavo.serving.ending import end
from octavo.serving.exchange import Exchange
from octavo.serving.generate import generating
from octavo.serving.server import VERSION
from octavo.transport.route import Handler, Route


async def abort(exchange: Exchange) -> None:
    """Handle Abort: end requests of the same key."""
    request = decode_message(exchange, await exchange.body(), RpcAbortRequest)
    server, names = exchange.server, set(request.request_ids)
    found = [
        each
        for each in list(server.active.values())
        if each.record.request_id in names and each.record.owner == exchange.owner
    ]
    for active in found:
        await end(server, active)
    missing = sorted(names - {each.record.request_id for each in found})
    await _respond(exchange, messages().AbortResponse(aborted=len(found), not_found=missing))


async def model_info(exchange: Exchange) -> None:
    """Respond to GetModelInfo with the facts of the engine."""
    server, facts = exchange.server, exchange.server.llm.facts
    response = messages().GetModelInfoResponse(
        name=facts.name,
        served_names=server.model_names,
        architecture=facts.architecture,
        dtype=facts.dtype,
        vocabulary=facts.vocabulary,
        max_model_len=facts.longest_tokens,
        eos_token_ids=sorted(server.llm.model.end_ids),
    )
    await _respond(exchange, response)


async def server_info(exchange: Exchange) -> None:
    """Respond to GetServerInfo with what changes while the server runs."""
    server, facts = exchange.server, exchange.server.llm.facts
    response = messages().GetServerInfoResponse(
        version=VERSION,
        is_ready=server.refusal() is None,
        num_requests=server.admission.num_open,
        instruction_set=facts.instruction_set,
        accumulation_order=facts.accumulation_order,
        started_at=server.started_at,
    )
    await _respond(exchange, response)


async def _respond(exchange: Exchange, message: Any) -> None:
    await exchange.respond(frame(message.SerializeToString()))


def _route(name: str, handler: Callable[[Exchange], Awaitable[None]], summary: str) -> Route:
    return Route("POST", f"/{SERVICE}/{name}", handler, summary)


_GENERATE: Handler = generating(RpcGenerateRequest, inference.translate)
GRPC_ROUTES: Sequence[Route] = (
    _route("Generate", _GENERATE, "Continue a text or token ids."),
    _route("GenerateStream", _GENERATE, "Continue them, in chunks."),
    _route(
        "Embed",
        generating(RpcEmbedRequest, inference.translate_embed),
        "The vector of a text or token ids.",
    ),
    _route("Abort", abort, "End requests."),
    _route("GetModelInfo", model_info, "What the model is."),
    _route("GetServerInfo", server_info, "The state of the server."),
)
