"""What nobody knows inside a field: found by the field's type, named by its path, read over.

A field is read by a type that refuses what it does not know. Only when that has happened is it read
again, by its like that knows no refusing, and looked through for the names: ordinary requests pay
nothing, and others no more than reading twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from itertools import islice
from operator import or_
from types import UnionType as TypeUnion
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec.inspect import Field, ListType, StructType, Type, UnionType

MOST_TOLD = 64  # names of one field; the others are left out all the same
# Of a larger field the first name is told, which costs nothing.
MOST_LOOKED_THROUGH_BYTES = 64 << 10

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_REFUSED = re.compile(
    r"^Object contains unknown field `(?P<name>.*?)`(?: - at `\$(?P<path>[^`]*)`)?$", re.DOTALL
)


class Unknown(NamedTuple):
    """A name that means nothing where it stands, and those that would."""

    path: str  # `messages[0].contnet`
    name: str  # `contnet`
    known: tuple[str, ...]


def lenient_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """What reads the type's values, and over what its structs do not know."""
    return msgspec.json.Decoder(_lenient(kind))


def refused_name(error: msgspec.ValidationError, field: str) -> Unknown | None:
    """The name that a value of the field was refused for, if it was one."""
    found = _REFUSED.match(str(error))
    if found is None:
        return None
    return Unknown(f"{field}{found['path'] or ''}.{found['name'][:64]}", found["name"], ())


def unknown_names(
    part: msgspec.Raw, kind: Callable[[], Type], refused: Unknown, path: str
) -> list[Unknown]:
    """What `kind` does not know in a value that is otherwise one; `refused` is the first of it."""
    if len(memoryview(part)) > MOST_LOOKED_THROUGH_BYTES:
        return [refused]
    return list(islice(_names(part, kind(), path), MOST_TOLD))


def _lenient(kind: Any) -> Any:
    """The type without what refuses; structs become structs of their own kind."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return Annotated[(_lenient(inner[0]), *inner[1:])]
    if origin in (Union, TypeUnion):
        return reduce(or_, map(_lenient, inner))
    if origin is list:
        return list[_lenient(inner[0])]  # type: ignore[misc]
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return kind
    hints = get_type_hints(kind, include_extras=True)
    changed = []
    for field in msgspec.structs.fields(kind):
        inside = _lenient(hints[field.name])
        if inside != hints[field.name]:
            default: Any = msgspec.field()
            if not field.required:
                default = field.default
            changed.append((field.name, inside, default))
    return msgspec.defstruct(
        kind.__name__, changed, bases=(kind,), kw_only=True, forbid_unknown_fields=False
    )


def _names(part: msgspec.Raw, kind: Type, path: str) -> Iterator[Unknown]:
    """Level by level, each value still as it was written; no further than somebody asks."""
    begin = bytes(memoryview(part)[:1])  # msgspec cuts off the white space before a value
    for each in kind.types if isinstance(kind, UnionType) else (kind,):
        if isinstance(each, StructType) and begin == b"{":
            yield from _names_of_object(part, each.fields, path)
        elif isinstance(each, ListType) and begin == b"[" and _has_structs(each):
            for index, item in enumerate(_ARRAY.decode(part)):
                yield from _names(item, each.item_type, f"{path}[{index}]")


def _names_of_object(part: msgspec.Raw, fields: tuple[Field, ...], path: str) -> Iterator[Unknown]:
    kinds: Mapping[str, Type] = {field.encode_name: field.type for field in fields}
    for name, value in _OBJECT.decode(part).items():
        if name in kinds:
            yield from _names(value, kinds[name], f"{path}.{name}")
        else:
            yield Unknown(f"{path}.{name[:64]}", name, tuple(kinds))


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
