"""/v1/models: which models there are to be named."""

from __future__ import annotations

from typing import Any

from octavo.server.http.exchange import Call


def _card(call: Call, name: str) -> dict[str, Any]:
    server = call.server
    return {
        "id": name,
        "object": "model",
        "created": server.started_at,
        "owned_by": "octavo",
        "root": server.engine.facts.name,
        "parent": None,
        "max_model_len": server.engine.facts.longest,
        "permission": [],
    }


async def models(call: Call) -> None:
    """All of them."""
    await call.respond_json(
        {"object": "list", "data": [_card(call, name) for name in call.server.model_names]}
    )


async def model(call: Call) -> None:
    """One of them."""
    call.server.check_model(call.parameter)
    await call.respond_json(_card(call, call.parameter))
