"""Events with names, as Anthropic's and Cohere's streams have them."""

from __future__ import annotations

from typing import Any

from octavo.transport.exchange import encode


def event(name: str, payload: dict[str, Any]) -> bytes:
    """Return the event with this name, which is the type of its payload too."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode({"type": name, **payload}))


def event_schema(payload: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an event: its name, and JSON in a string."""
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": payload}
    return {
        "type": "object",
        "required": ["event", "data"],
        "properties": {"event": {"type": "string"}, "data": data},
    }
