"""The items that precede an answer, as they are kept and listed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.server.http.errors import invalid
from octavo.server.responses.kept import Unnamed
from octavo.server.responses.store import Content, StoredItem

MOST_LISTED, USUALLY_LISTED = 100, 20
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


def page(
    items: Sequence[StoredItem], *, after: str | None, limit: int, is_ascending: bool
) -> dict[str, Any]:
    """Return a page of items; raise ApiError for an item that is not among them."""
    ordered = list(items) if is_ascending else list(reversed(items))
    if after is not None:
        names = [name for name, _ in ordered]
        if after not in names:
            raise invalid(f"after: there is no item {after[:192]!r}", "after")
        ordered = ordered[names.index(after) + 1 :]
    shown = ordered[:limit]
    return {
        "object": "list",
        "data": [msgspec.Raw(item) for _, item in shown],
        "first_id": shown[0][0] if shown else None,
        "last_id": shown[-1][0] if shown else None,
        "has_more": len(ordered) > limit,
    }
