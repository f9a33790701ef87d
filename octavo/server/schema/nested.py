"""What nobody knows inside a field: found by the field's type, named by its path, left out.

A field is read by a type that refuses what it does not know. Only when that has happened is it cut
up here, level by level, each value still as it was written: ordinary requests pay nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec.inspect import Field, ListType, StructType, Type, UnionType

from octavo.server.errors import invalid

MOST_TOLD = 64  # names of one field; the others are left out all the same

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_encode = msgspec.json.Encoder().encode


class Unknown(NamedTuple):
    """A name that means nothing where it stands, and those that would."""

    path: str  # `messages[0].contnet`
    name: str  # `contnet`
    known: tuple[str, ...]


Tell = Callable[[Unknown], None]


def known_part(part: msgspec.Raw, kind: Type, path: str) -> tuple[msgspec.Raw, list[Unknown]]:
    """The field's value without what `kind` does not know, and that by name.

    Raises what msgspec does for what is no JSON, and ApiError for too long a list.
    """
    found: list[Unknown] = []

    def tell(unknown: Unknown) -> None:
        if len(found) < MOST_TOLD:
            found.append(unknown)

    return _known(part, kind, path, tell), found


def names_unknown_fields(error: msgspec.ValidationError) -> bool:
    """Whether it is such a name that a value was refused for."""
    return "contains unknown field" in str(error)


def _known(part: msgspec.Raw, kind: Type, path: str, tell: Tell) -> msgspec.Raw:
    begin = bytes(memoryview(part)[:1])  # msgspec cuts off the white space before a value
    for each in kind.types if isinstance(kind, UnionType) else (kind,):
        if isinstance(each, StructType) and begin == b"{":
            return _known_object(part, each.fields, path, tell)
        if isinstance(each, ListType) and begin == b"[" and _has_structs(each):
            return _known_array(part, each, path, tell)
    return part


def _known_object(
    part: msgspec.Raw, fields: tuple[Field, ...], path: str, tell: Tell
) -> msgspec.Raw:
    kinds: Mapping[str, Type] = {field.encode_name: field.type for field in fields}
    kept: dict[str, msgspec.Raw] = {}
    for name, value in _OBJECT.decode(part).items():
        if name in kinds:
            kept[name] = _known(value, kinds[name], f"{path}.{name}", tell)
        else:
            tell(Unknown(f"{path}.{name[:64]}", name, tuple(kinds)))
    return msgspec.Raw(_encode(kept))


def _known_array(part: msgspec.Raw, kind: ListType, path: str, tell: Tell) -> msgspec.Raw:
    items = _ARRAY.decode(part)
    if kind.max_length is not None and len(items) > kind.max_length:
        raise invalid(f"{path}: expected array of length <= {kind.max_length}", path)
    kept = [
        _known(item, kind.item_type, f"{path}[{index}]", tell) for index, item in enumerate(items)
    ]
    return msgspec.Raw(_encode(kept))


def _has_structs(kind: Any) -> bool:
    """Whether there is anything to be looked for within."""
    match kind:
        case StructType():
            return True
        case ListType():
            return _has_structs(kind.item_type)
        case UnionType():
            return any(_has_structs(each) for each in kind.types)
    return False
