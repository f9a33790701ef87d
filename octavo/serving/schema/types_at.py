"""The types at a path inside a field, for errors that say what belongs there."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec.inspect import DictType, ListType, LiteralType, StructType, Type, UnionType

from octavo.serving.schema.given import MAX_BYTES, value_at

MAX_NAMES = 4  # in a hint
_STEP = re.compile(r"\[[0-9.]+\]|\.(?P<name>[^.\[]+)")
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


def choices_at(kind: Type, path: str) -> tuple[Any, ...]:
    """Return the values that are possible at a path, if only some are."""
    return tuple(
        value
        for each in _types_at(kind, path)
        if isinstance(each, LiteralType)
        for value in each.values
        if value != ""
    )


def takes_objects(kind: Type, path: str) -> bool:
    """Return whether the value at a path may be an object."""
    return any(isinstance(each, DictType | StructType) for each in _types_at(kind, path))


def misplaced(part: msgspec.Raw, kind: Type, path: str, missing: str) -> tuple[str, ...]:
    """Return the names in the object at a path that belong into its field `missing`."""
    if len(memoryview(part)) > MAX_BYTES:
        return ()
    found = value_at(part, path)
    if found is None or bytes(memoryview(found)[:1]) != b"{":
        return ()
    known = _names(_types_at(kind, path))
    inner = _names(_types_at(kind, f"{path}.{missing}"))
    given = _OBJECT.decode(found)
    return tuple(each for each in inner if each in given and each not in known)[:MAX_NAMES]


def _names(kinds: list[Type]) -> dict[str, None]:
    structs = [each for each in kinds if isinstance(each, StructType)]
    return {field.encode_name: None for each in structs for field in each.fields}


def _types_at(kind: Type, path: str) -> list[Type]:
    """Return the types that the value at a path may have; none if the path leads nowhere."""
    kinds, at = _each(kind), 0
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            return []
        at = step.end()
        inner: list[Type] = []
        for each in kinds:
            if isinstance(each, ListType) and step["name"] is None:
                inner += _each(each.item_type)
            elif isinstance(each, DictType):
                inner += _each(each.value_type)
            elif isinstance(each, StructType):
                fields = [one for one in each.fields if one.encode_name == step["name"]]
                inner += [type for one in fields for type in _each(one.type)]
        kinds = inner
    return kinds


def _each(kind: Type) -> list[Type]:
    """Return the members of a union, or the type alone."""
    if isinstance(kind, msgspec.inspect.Metadata):
        return _each(kind.type)
    return list(kind.types) if isinstance(kind, UnionType) else [kind]
