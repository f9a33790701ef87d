"""Reads values by their types: whole where msgspec accepts them, otherwise a level at a time.

A level is split into the values in it, which stay JSON. Those that are right are decoded at once,
so that the search goes only where something is unknown or wrong, and nothing is built in vain.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import cache
from types import NoneType
from types import UnionType as TypeUnion
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Raw, Struct, UnsetType

from octavo.serving.schema.near_names import not_among
from octavo.transport.errors import ApiError, invalid

MAX_UNKNOWN_INSIDE = 1 << 14  # unknown fields inside of one field
# On the way to what is unknown or wrong in a field. Each step decodes the rest once more.
MAX_STEPS = 10
MAX_DECODED_AGAIN = 1 << 20
_MAX_NAME = 64  # characters of a name in a path
_MAX_MISPLACED = 4  # names in a hint
_NUMBER_BYTES = 64  # of one that is compared as an integer
_SHOWN = 32  # characters of a number

_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_ARRAY = msgspec.json.Decoder(list[Raw])
# JSON's words for what is expected, and for what was given, by its first byte.
_WORDS: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    NoneType: "null",
    list: "array",
    Any: "value",
}
_GIVEN = {'"': "string", "[": "array", "{": "object", "t": "boolean", "f": "boolean", "n": "null"}
_BOUNDS: Sequence[tuple[str, str, Callable[[Any, Any], bool]]] = (
    ("gt", ">", operator.gt),
    ("ge", ">=", operator.ge),
    ("lt", "<", operator.lt),
    ("le", "<=", operator.le),
    ("min_length", "of length >=", operator.ge),
    ("max_length", "of length <=", operator.le),
)
_OUT_OF_RANGE = "{} has a number that is out of range"  # all that may be wrong with any JSON
# In a pattern: "$" of ECMAScript, which differs from Python's.
_END_OF_TEXT = r"(?![\s\S])"

Path = tuple[str, ...]  # the steps to a value: "messages", "[0]", ".content"


class Unknown(NamedTuple):
    """An unknown field, and the names that are known in its place."""

    path: str  # `messages[0].contnet`
    name: str  # `contnet`
    known: tuple[str, ...]


class Search:
    """The search for what is unknown or wrong in a field."""

    def __init__(self) -> None:
        self.unknown: list[Unknown] = []
        self._num_left = MAX_DECODED_AGAIN

    def enter(self, part: Raw, path: Path) -> None:
        """Count the values that are decoded again; raise ApiError if they are too many."""
        self._num_left -= most_values(bytes(part))
        if len(path) > MAX_STEPS or self._num_left < 0:
            what = "has too many values to be searched for what is unknown or wrong in it"
            raise invalid(f"{''.join(path)} {what}", path[0])

    def note(self, path: Path, name: str, known: Collection[str]) -> None:
        """Take an unknown field; raise ApiError if there are too many."""
        self.unknown.append(Unknown("".join(path), name, tuple(known)))
        if len(self.unknown) > MAX_UNKNOWN_INSIDE:
            raise invalid(f"{path[0]} has more than {MAX_UNKNOWN_INSIDE} unknown fields", path[0])


class _Type(NamedTuple):
    """One of the types that a value may have."""

    base: Any  # such as `str`, `list`, `Literal` or a struct
    inner: tuple[Any, ...]  # the types in it, or the values of a Literal
    bounds: tuple[Meta, ...]

    @property
    def word(self) -> str:
        """JSON's word for a value of the type."""
        return _WORDS.get(type(self.inner[0]) if self.base is Literal else self.base, "object")

    def broken(self, value: Any, shown: Any) -> str | None:
        """Return the first bound that a value breaks, with what is `shown` of the value."""
        size = len(value) if isinstance(value, str) else value
        for meta in self.bounds:
            for name, words, holds in _BOUNDS:
                bound = getattr(meta, name)
                if bound is not None and not holds(size, bound):
                    bound = float(bound) if self.base is float else bound
                    return f"expected {self.word} {words} {bound}, got {shown}"
            if meta.pattern is not None and not re.search(meta.pattern, value):
                return f"expected string matching regex {meta.pattern.replace(_END_OF_TEXT, '$')!r}"
        return None


class Reader:
    """A decoder of the values of a type, which reads those that msgspec refuses in pieces."""

    def __init__(self, kind: Any) -> None:
        self.decode: Callable[[Raw], Any] = msgspec.json.Decoder(kind).decode
        self._types = list(_types(kind, ()))
        self.structs: list[type[Struct]] = [
            each.base for each in self._types if hasattr(each.base, "__struct_config__")
        ]
        self._inside = {
            each.base: Reader(each.inner[-1]) for each in self._types if each.base in (list, dict)
        }

    def read(self, part: Raw, path: Path, search: Search) -> Any:
        """Return the value and note its unknown fields; or raise ApiError.

        A whole number such as 1.0 is accepted as an integer.
        """
        try:
            return self.decode(part)
        except msgspec.ValidationError:
            given, value, _ = _given(part)
        if given == "number" and value.is_integer() and any(one.base is int for one in self._types):
            return self.read(Raw(b"%d" % int(value)), path, search)
        return self._read_inside(part, path, search)

    def _read_inside(self, part: Raw, path: Path, search: Search) -> Any:
        """Read a value that has something unknown or wrong."""
        begin = bytes(memoryview(part)[:1])  # msgspec removes the white space before a value
        if begin == b"[" and list in self._inside:
            inside: Callable[..., Any] = self._read_list
        elif begin == b"{" and self.structs:
            inside = self._read_struct
        elif begin == b"{" and dict in self._inside:
            inside = self._read_dict
        else:
            raise self._refusal(part, "".join(path))
        search.enter(part, path)
        return inside(part, path, search)

    def _read_list(self, part: Raw, path: Path, search: Search) -> list[Any]:
        parts = _ARRAY.decode(part)
        self._type(list, len(parts), path)
        item, left = self._inside[list], iter(parts)
        values: list[Any] = []
        while len(values) < len(parts):
            try:
                values.extend(map(item.decode, left))
            except msgspec.ValidationError:  # those before are in the list
                index = len(values)
                step = (*path, f"[{index}]")
                values.append(item._read_inside(parts[index], step, search))
        return values

    def _read_dict(self, part: Raw, path: Path, search: Search) -> dict[str, Any]:
        values, value = {}, self._inside[dict]
        parts = _OBJECT.decode(part)
        (key,) = _types(self._type(dict, len(parts), path).inner[0], ())
        for name, each in parts.items():
            if wrong := key.broken(name, len(name)):
                raise invalid(f"{''.join(path)}: {wrong}, as a key", "".join(path))
            values[name] = value.read(each, (*path, f".{name[:_MAX_NAME]}"), search)
        return values

    def _read_struct(self, part: Raw, path: Path, search: Search) -> Struct:
        parts = _OBJECT.decode(part)
        kind = self._struct_of(parts, path)
        fields, values = fields_of(kind), {}
        for name, each in parts.items():
            field, step = fields.get(name), (*path, f".{name[:_MAX_NAME]}")
            if field is None:
                search.note(step, name, fields)
            else:
                values[field.name] = field.reader.read(each, step, search)
        for name, field in fields.items():
            if field.is_required and name not in parts:
                inner = {each for struct in field.reader.structs for each in fields_of(struct)}
                raise _missing((*path, f".{name}"), name, inner & (parts.keys() - fields.keys()))
        return kind(**values)

    def _struct_of(self, parts: dict[str, Raw], path: Path) -> type[Struct]:
        """Return the struct of an object, whose tag is removed if there are several."""
        structs: dict[Any, type[Struct]] = {
            each.__struct_config__.tag: each for each in self.structs
        }
        tag = self.structs[0].__struct_config__.tag_field
        if tag is None:
            return structs[None]
        if tag not in parts:
            raise _missing((*path, f".{tag}"), tag)
        names = Reader(Literal[tuple(structs)])
        return structs[names.read(parts.pop(tag), (*path, f".{tag}"), Search())]

    def _type(self, base: type, size: int, path: Path) -> _Type:
        """Return the type of a list or an object of this size; raise ApiError for a wrong size."""
        kind = next(each for each in self._types if each.base is base)
        if wrong := kind.broken(size, size):
            raise invalid(f"{''.join(path)}: {wrong}", "".join(path))
        return kind

    def _refusal(self, part: Raw, place: str) -> ApiError:
        """Return the error for a value that is wrong itself."""
        given, value, shown = _given(part)
        words = dict.fromkeys(each.word for each in self._types)
        for each in self._types:
            if each.base is Literal and isinstance(value, type(each.inner[0])):
                others = " or an object" if "object" in words else ""
                return not_among(place, sorted(filter(None, each.inner)), value, others)
            if each.word == given or (each.word, given) == ("number", "integer"):
                wrong = each.broken(value, shown)
                wrong = wrong or f"expected {each.word} of 64 bits, got {shown}"
                return invalid(f"{place}: {wrong}", place)
        if any(each.base is Any for each in self._types):
            return invalid(_OUT_OF_RANGE.format(place), place)
        return invalid(f"{place}: expected {' or '.join(words)}, got {given}", place)


class Field(NamedTuple):
    """One field of a struct."""

    name: str
    is_required: bool
    reader: Reader


@cache
def fields_of(kind: type[Struct]) -> dict[str, Field]:
    """Return the fields of a struct by their names in JSON."""
    return {
        each.encode_name: Field(each.name, each.required, Reader(each.type))
        for each in msgspec.structs.fields(kind)
    }


def _types(kind: Any, bounds: tuple[Meta, ...]) -> Iterator[_Type]:
    """Yield the types that a value may have, of a union each."""
    base, inner = get_origin(kind) or kind, get_args(kind)
    if base is Annotated:
        yield from _types(inner[0], (*bounds, *inner[1:]))
    elif base in (Union, TypeUnion):
        for each in inner:
            yield from _types(each, bounds)
    elif base is not UnsetType:
        yield _Type(base, inner, bounds)


def most_values(text: bytes) -> int:
    """Return the number of values in a JSON text, or more: characters in strings are counted too.

    Every value but the first follows one of three characters.
    """
    return text.count(b",") + text.count(b"[") + text.count(b"{")


class _Seen(str):
    """A value of a list or a name of an object, which has been seen and is not kept."""


class _LastSeenError(Exception):
    """The end of a visit before the end of the list or the object."""


def visit(part: Raw | bytes, is_last: Callable[[Any], bool]) -> None:
    """Show the values of a list, or the names of an object, until one is the last to be seen."""
    seen = _Seen()

    def show(kind: type, value: Any) -> _Seen:
        if is_last(value):
            raise _LastSeenError
        return seen

    kind: Any = list[_Seen] if bytes(memoryview(part)[:1]) == b"[" else dict[_Seen, Raw]
    with suppress(_LastSeenError):
        msgspec.json.decode(part, type=kind, dec_hook=show)


def _given(part: Raw) -> tuple[str, Any, Any]:
    """Return JSON's word for a value, the value if it is a string or a number, and its text."""
    text = bytes(memoryview(part)[: _NUMBER_BYTES + 1]).decode(errors="replace")
    word = _GIVEN.get(text[0])
    if word is not None:
        value = msgspec.json.decode(part) if word == "string" else None
        return word, value, None if value is None else len(value)
    is_integer = not set(".eE") & set(text)
    is_short = is_integer and len(text) <= _NUMBER_BYTES
    number = int(text) if is_short else float(bytes(part))
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return "integer" if is_integer else "number", number, shown


def _missing(path: Path, name: str, misplaced: Collection[str] = ()) -> ApiError:
    """Return the error for a missing field, with names beside it that should be in it."""
    place, hint = "".join(path), ""
    if names := sorted(misplaced)[:_MAX_MISPLACED]:
        verb = "belongs" if len(names) == 1 else "belong"
        hint = f"; {' and '.join(names)} {verb} under {name}"
    return invalid(f"{place} is missing{hint}", place)
