"""/v1/models: the names under which the model is served."""

from __future__ import annotations

from typing import Any

from octavo.server.http.exchange import Exchange


def _card(exchange: Exchange, name: str) -> dict[str, Any]:
    server = exchange.server
    return {
        "id": name,
        "object": "model",
        "created": server.started_at,
        "owned_by": "octavo",
        "root": server.llm.facts.name,
        "parent": None,
        "max_model_len": server.llm.facts.longest_tokens,
        "permission": [],
    }


async def models(exchange: Exchange) -> None:
    """Handle GET /v1/models: list the model under all its names."""
    await exchange.respond_json(
        {"object": "list", "data": [_card(exchange, name) for name in exchange.server.model_names]}
    )


async def model(exchange: Exchange) -> None:
    """Handle GET /v1/models/{id}: describe the model of that name."""
    exchange.server.check_model(exchange.parameter)
    await exchange.respond_json(_card(exchange, exchange.parameter))
