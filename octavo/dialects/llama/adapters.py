"""/lora-adapters: the adapters by their numbers, and the one that all requests have."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.serving.adapters.rights import check_may_change
from octavo.serving.adapters.selection import Selection, scaled
from octavo.serving.exchange import Exchange
from octavo.serving.schema.model_names import MOST_SCALES, AdapterScale
from octavo.serving.server import Server
from octavo.transport.errors import invalid

_MOST_BYTES = 1 << 14
_DECODER = msgspec.json.Decoder(list[AdapterScale])


async def listed(exchange: Exchange) -> None:
    """Respond with each adapter, and its scale in requests that name none."""
    await exchange.respond_json(_listed(exchange.server))


def _listed(server: Server) -> list[dict[str, Any]]:
    applied = server.adapters.applied
    return [
        {
            "id": each.number,
            "path": str(each.path),
            "name": each.name,
            "scale": applied[1] if applied is not None and applied[0] is each else 0.0,
            "task_name": "",
            "prompt_prefix": "",
        }
        for each in server.adapters
    ]


async def set_scales(exchange: Exchange, *, is_operator: bool = False) -> None:
    """Set which adapter requests have that name none; one that is not listed gets the scale 0."""
    if not is_operator:
        check_may_change(exchange)
    body = await exchange.body()
    try:
        given = _DECODER.decode(body) if len(body) <= _MOST_BYTES else []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"the body must be a list of objects with id and scale: {error}") from None
    if len(body) > _MOST_BYTES or len(given) > MOST_SCALES:
        raise invalid(f"the body must be a list of at most {MOST_SCALES} objects")
    chosen: Selection = scaled(exchange.server, tuple([(each.id, each.scale) for each in given]))
    applied = None if chosen.adapter is None else (chosen.adapter, chosen.scale)
    exchange.server.adapters.applied = applied
    await exchange.respond_json({"success": True})
