"""Finds unknown fields inside a field, by its type, and names them by their path.

A field is decoded by a type that forbids unknown fields. Only after a refusal is it decoded again,
by a copy of the type that skips them, and searched for their names. Ordinary requests pay nothing
for this, and others at most a second decode.
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

MAX_REPORTED = 64  # unknown names of one field; the rest are skipped without a report
# In a larger field only the first unknown name is reported, which msgspec's error already holds.
MAX_SEARCHED_BYTES = 64 << 10

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_REFUSED = re.compile(
    r"^Object contains unknown field `(?P<name>.*?)`(?: - at `\$(?P<path>[^`]*)`)?\Z", re.DOTALL
)


class Unknown(NamedTuple):
    """An unknown field, and the names that are known in its place."""

    path: str  # `messages[0].contnet`
    name: str  # `contnet`
    known: tuple[str, ...]


def lenient_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return a decoder of the type that skips fields which its structs do not define."""
    return msgspec.json.Decoder(_lenient(kind))


def refused_name(error: msgspec.ValidationError, field: str) -> Unknown | None:
    """Return the unknown field that msgspec refused, or None if the error is another one."""
    found = _REFUSED.match(str(error))
    if found is None:
        return None
    return Unknown(f"{field}{found['path'] or ''}.{found['name'][:64]}", found["name"], ())


def unknown_names(
    part: msgspec.Raw, kind: Callable[[], Type], refused: Unknown, path: str
) -> list[Unknown]:
    """Return the fields in a valid value that `kind` does not define; `refused` is the first."""
    if len(memoryview(part)) > MAX_SEARCHED_BYTES:
        return [refused]
    return list(islice(_names(part, kind(), path), MAX_REPORTED))


def _lenient(kind: Any) -> Any:
    """Return the type with each struct replaced by a subclass that skips unknown fields."""
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
    """Yield unknown fields lazily; each value is left as JSON until it is searched."""
    begin = bytes(memoryview(part)[:1])  # msgspec removes the white space before a value
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
    """Return whether a value of the type can contain an object with known fields."""
    match kind:
        case StructType():
            return True
        case ListType():
            return _has_structs(kind.item_type)
        case UnionType():
            return any(_has_structs(each) for each in kind.types)
    return False
