"""The items of a request in the form in which they are kept, as its reader makes them.

A worker makes them of a large body, so that the server need not.
"""

from __future__ import annotations

from typing import Any

import msgspec

_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
_encode = msgspec.json.Encoder().encode


class Unnamed(msgspec.Struct, array_like=True):
    """An item without its id, as JSON."""

    prefix: str
    id: str  # empty: it has none yet
    json: bytes


def kept_of(request: Any) -> bytes:
    """Return the items of a request in the form in which they are kept, without ids of ours."""
    if request.store is False:
        return b""
    given = request.input
    if isinstance(given, str):
        content = _parts(given, "user")
        shown = {"type": "message", "role": "user", "content": content, "status": "completed"}
        return msgspec.msgpack.encode([Unnamed("msg", "", _encode(shown))])
    return msgspec.msgpack.encode([_unnamed_of(item) for item in given])


_KEPT = (*("role", "content", "call_id", "name", "namespace", "arguments", "output", "summary"),)


def _unnamed_of(item: Any) -> Unnamed:
    kind = item.type or "message"
    shown: dict[str, Any] = {"type": kind}
    for name in _KEPT:
        value = getattr(item, name)
        if value is not None:
            shown[name] = _parts(value, item.role) if name in ("content", "output") else value
    if kind != "reasoning":
        shown["status"] = "completed"
    return Unnamed(_PREFIXES.get(kind, "fco"), item.id or "", _encode(shown))


def _parts(value: Any, role: str | None) -> Any:
    """Return content in parts, as clients expect a message's."""
    if not isinstance(value, str):
        return [
            {key: each for key, each in msgspec.to_builtins(part).items() if each is not None}
            for part in value
        ]
    if role is None:  # a function's output, which may be a text
        return value
    if role == "assistant":
        return [{"type": "output_text", "text": value, "annotations": []}]
    return [{"type": "input_text", "text": value}]
