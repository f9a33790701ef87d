"""The items that precede an answer, as they are kept and listed.

A worker makes those of a large body, so that the server need not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.serving.store.responses import Content, StoredItem

_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}


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


_encode = msgspec.json.Encoder().encode


class _Answered(msgspec.Struct):
    """The part of a response that later ones continue."""

    output: list[msgspec.Raw]


class _Named(msgspec.Struct):
    id: str


_unnamed = msgspec.msgpack.Decoder(list[Unnamed])
_answered = msgspec.json.Decoder(_Answered)
_named = msgspec.json.Decoder(_Named)


def named(kept: bytes, request_id: str) -> tuple[StoredItem, ...]:
    """Return the items of a request, each with an id."""
    items: list[StoredItem] = []
    for index, item in enumerate(_unnamed.decode(kept) if kept else ()):
        name = item.id or f"{item.prefix}_{request_id}_in{index}"
        items.append((name, b'{"id":%b,%b' % (_encode(name), item.json[1:])))
    return tuple(items)


def continued(content: Content) -> tuple[StoredItem, ...]:
    """Return what precedes a request that continues a response: its input and its output."""
    output = _answered.decode(content.body).output
    return content.items + tuple((_named.decode(each).id, bytes(each)) for each in output)


def as_array(items: Sequence[StoredItem]) -> bytes:
    """Return items as one JSON array."""
    return b"[%b]" % b",".join([item for _, item in items])
