"""/v1/models: the names under which the model is served, for OpenAI's clients and Anthropic's.

Both ask the same route, so that the answers have the fields of both.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from octavo.serving.exchange import Exchange


def _card(exchange: Exchange, name: str) -> dict[str, Any]:
    server = exchange.server
    started = datetime.fromtimestamp(server.started_at, UTC)
    return {
        "id": name,
        "object": "model",
        "created": server.started_at,
        "owned_by": "octavo",
        "root": server.llm.facts.name,
        "parent": None,
        "max_model_len": server.llm.facts.longest_tokens,
        "permission": [],
        "type": "model",
        "display_name": name,
        "created_at": started.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": server.llm.facts.longest_tokens,
    }


async def models(exchange: Exchange) -> None:
    """Handle GET /v1/models: list the model under all its names."""
    names = exchange.server.model_names
    await exchange.respond_json(
        {
            "object": "list",
            "data": [_card(exchange, name) for name in names],
            "has_more": False,
            "first_id": names[0],
            "last_id": names[-1],
        }
    )


async def model(exchange: Exchange) -> None:
    """Handle GET /v1/models/{id}: describe the model of that name."""
    exchange.server.context.check_model(exchange.parameter)
    await exchange.respond_json(_card(exchange, exchange.parameter))
