"""The items that precede an answer, as they are kept and listed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from octavo.dialects.responses.kept import Unnamed
from octavo.serving.store.responses import Content, StoredItem

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
