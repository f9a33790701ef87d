"""Decodes the body of a request into its struct, and reports its unknown fields."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import count
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from octavo.serving.schema.near_names import near_name
from octavo.serving.schema.reader import Field, Search, Unknown, fields_of, most_values, visit
from octavo.serving.schema.rules import FieldRules, rules_of
from octavo.transport.errors import ApiError, invalid

MAX_NESTING = 100
MAX_OPEN_VALUES = 1 << 16  # in a field that may hold any JSON
MAX_UNKNOWN = 256  # unknown fields of one body
MAX_FIELDS = 1 << 12  # of one body with so many values that they are counted first
_MAX_UNCOUNTED = 1 << 18
MAX_REPORTED = 64  # unknown fields inside of one field that are named
MAX_NAME_CHARACTERS = 200  # of an unknown field, as it is reported
MAX_LISTS = 2048  # lists of token ids in one field
_UNSUPPORTED_BYTES = 4096  # a value that asks for nothing is shorter
_TOO_LONG = object()  # compares unequal to every value that asks for nothing
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
# An escaped pair, another escape, or half of a pair in the group.
_SURROGATES = re.compile(
    rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u([dD][89a-fA-F][0-9a-fA-F]{2})|\\.", re.DOTALL
)
T = TypeVar("T", bound=msgspec.Struct)

_MAX_NAMES_IN_HEADER = 16
_MAX_NAME_CHARACTERS = 192
# A larger body is decoded field by field at once. The fast decoder may build millions of objects
# before it refuses a hostile body, which would then be paid for in addition to the slow decoder.
MAX_FAST_BYTES = 256 * 1024
MAX_FAST_VALUES = 1 << 14  # in a body that the event loop decodes: one may take 64 bytes and more


def decode(body: bytes, kind: type[T]) -> tuple[T, tuple[Unknown, ...]]:
    """Return the request and its unknown fields; raise ApiError for a body that is not valid.

    One call of msgspec decodes the whole of a small body. The structs forbid unknown fields, so
    that a success proves that there are none. A body that is refused, or larger than
    `MAX_FAST_BYTES`, is read field by field.
    """
    if len(body) <= MAX_FAST_BYTES:
        decoder, open_fields, list_fields = _decoder(kind)
        try:
            request: T = decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        else:
            if _is_bounded(request, open_fields, list_fields):
                return request, ()
    request, unknown = decode_by_field(body, kind)
    closed = rules_of(kind).closed
    if closed and (inside := tuple(each for each in unknown if _outer(each.path) in closed)):
        raise unknown_field(inside[0], kind)
    return request, unknown


def _outer(path: str) -> str:
    """Return the field of the request that a path leads into; "" for a field of the request."""
    outer, dot, _ = path.partition(".")
    return outer if dot else ""


def is_large(body: bytes) -> bool:
    """Return whether a body is too large to be decoded in the event loop."""
    return len(body) > MAX_FAST_BYTES or most_values(body) > MAX_FAST_VALUES


def _is_bounded(request: Any, open_fields: Sequence[str], list_fields: Sequence[str]) -> bool:
    """Return whether the values whose bounds msgspec cannot express are within them."""
    for name in open_fields:
        value = getattr(request, name)
        depth, num_values = (0, 0) if value is None else extent(value)
        if depth > MAX_NESTING or num_values > MAX_OPEN_VALUES:
            return False
    for name in list_fields:
        value = getattr(request, name)
        if type(value) is list and sum([type(each) is list for each in value]) > MAX_LISTS:
            return False
    return True


@lru_cache(maxsize=64)
def _decoder(
    kind: type[T],
) -> tuple[msgspec.json.Decoder[T], tuple[str, ...], tuple[str, ...]]:
    assert kind.__struct_config__.forbid_unknown_fields, "a decode must prove that all are known"
    names = kind.__struct_fields__
    decoder = msgspec.json.Decoder(kind)
    rules = rules_of(kind)
    return (
        decoder,
        tuple(rules.open.intersection(names)),
        tuple(rules.with_lists.intersection(names)),
    )


def unknown_field(unknown: Unknown, kind: type[msgspec.Struct]) -> ApiError:
    """Return the error for an unknown field, with the name that was probably meant."""
    path, name, known = unknown
    other = rules_of(kind).other_names.get(name)
    hint = f"; did you mean {other!r}?" if other in known else near_name(name, known)
    return invalid(f"unknown field {path[:192]!r}{hint}", path[:192], "unknown_parameter")


def named_in_header(unknown: tuple[Unknown, ...]) -> bytes:
    """Return the first unknown fields for a header, with what is unsafe there as %XX."""
    paths = [each.path[:_MAX_NAME_CHARACTERS] for each in unknown[:_MAX_NAMES_IN_HEADER]]
    return ",".join(quote(path, safe="[]:") for path in paths).encode()


def decode_by_field(body: bytes, kind: type[T]) -> tuple[T, tuple[Unknown, ...]]:
    """Return the request and its unknown fields, or raise ApiError for the first wrong field.

    The body is split into fields, and each known one is decoded by its own type. Unknown fields are
    skipped without being built, so that a body full of them costs no more than parsing it.
    """
    parts = _parts(body)
    rules = rules_of(kind)
    known_unsupported = parts.keys() & rules.unsupported.keys()
    unsupported = {name: _short_value(parts[name]) for name in known_unsupported}
    rules.check_unsupported(unsupported)
    fields = fields_of(kind)
    values: dict[str, Any] = {}
    nested = [
        Unknown(f"{outer}.{name[:64]}", name, known)
        for outer, name, known in rules.ignored_inside(unsupported)
    ]
    for name, field in fields.items():
        if name in parts:
            values[name] = read_field(field, parts[name], rules, nested)
        elif field.is_required:
            hint = rules.hint_for(parts.keys() - fields.keys())
            raise invalid(f"{name} is missing{hint}", name)
    unknown = parts.keys() - fields.keys() - unsupported.keys() - rules.ignored.keys()
    if len(unknown) > MAX_UNKNOWN:
        raise invalid(f"the body has {len(unknown)} unknown fields; the limit is {MAX_UNKNOWN}")
    rules.check_unknown({name: _short_value(parts[name]) for name in sorted(unknown)})
    known = kind.__struct_fields__
    names = sorted(name[:MAX_NAME_CHARACTERS] for name in unknown)
    return kind(**values), (*(Unknown(name, name, known) for name in names), *nested)


def read_field(field: Field, part: msgspec.Raw, rules: FieldRules, unknown: list[Unknown]) -> Any:
    """Return the value of a request's field and append its unknown fields; or raise ApiError."""
    name, search = field.name, Search()
    if name in rules.with_lists and _has_many_lists(part):
        # Refused before a million lists are built.
        raise invalid(f"{name} has more than {MAX_LISTS} lists", name)
    try:
        value = field.reader.read(part, (name,), search)
    except UnicodeDecodeError:
        raise invalid(f"{name} is not valid JSON: it is not UTF-8", name) from None
    except msgspec.DecodeError as error:  # valid to skip, but not to decode
        raise invalid(f"{name} is not valid JSON: {_why(error, bytes(part))}", name) from None
    except RecursionError:
        raise _too_deep(name) from None
    if name in rules.open:
        depth, num_values = extent(value)
        if depth > MAX_NESTING:
            raise _too_deep(name)
        if num_values > MAX_OPEN_VALUES:
            raise invalid(f"{name} has more than {MAX_OPEN_VALUES} values", name)
    unknown += search.unknown[:MAX_REPORTED]
    return value


def _parts(body: bytes) -> dict[str, msgspec.Raw]:
    """Split the body into its fields, each left as JSON."""
    if not body.strip():
        raise invalid("the body is empty; it must be a JSON object")
    try:
        if most_values(body) > _MAX_UNCOUNTED and _has_many_names(body):
            raise invalid(f"the body has more than {MAX_FIELDS} fields")
        return _OBJECT.decode(body)
    except msgspec.ValidationError:
        raise invalid("the body must be a JSON object") from None
    except msgspec.DecodeError as error:
        raise invalid(f"the body is not valid JSON: {_why(error, body)}") from None
    except UnicodeDecodeError:
        raise invalid("the body is not valid JSON: it is not UTF-8") from None
    except RecursionError:
        raise _too_deep(None) from None


def _has_many_names(body: bytes) -> bool:
    """Return whether an object has more than MAX_FIELDS names, of which no more are built."""
    names: set[str] = set()

    def is_last(name: str) -> bool:
        names.add(name)
        return len(names) > MAX_FIELDS

    visit(body, is_last)
    return len(names) > MAX_FIELDS


def _has_many_lists(part: msgspec.Raw) -> bool:
    """Return whether a list holds more than MAX_LISTS lists, of which one at a time is built."""
    if bytes(memoryview(part)[:1]) != b"[" or bytes(part).count(b"[") <= MAX_LISTS + 1:
        return False
    lists = count()
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # refused later
        visit(part, lambda each: isinstance(each, list) and next(lists) == MAX_LISTS)
    return next(lists) > MAX_LISTS


def _short_value(part: msgspec.Raw) -> Any:
    """Decode the value of an unsupported field; long values certainly ask for something."""
    if len(memoryview(part)) > _UNSUPPORTED_BYTES:
        return _TOO_LONG
    try:
        return msgspec.json.decode(part)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return _TOO_LONG


def _too_deep(name: str | None) -> ApiError:
    what = "the body" if name is None else name
    return invalid(f"{what} is nested deeper than {MAX_NESTING} levels", name)


def extent(value: Any) -> tuple[int, int]:
    """Return the depth of a value and the number of values in it, without recursion.

    Neither is followed far beyond its limit.
    """
    level, num_values, depth = [value], 0, 0
    while level and depth <= MAX_NESTING and num_values <= MAX_OPEN_VALUES:
        num_values += len(level)
        containers = [item for item in level if isinstance(item, dict | list | msgspec.Struct)]
        depth += bool(containers)
        level = []
        for item in containers:
            if isinstance(item, msgspec.Struct):
                level.extend([getattr(item, name) for name in item.__struct_fields__])
            else:
                level.extend(item.values() if isinstance(item, dict) else item)
    return depth, num_values + len(level)


def why_malformed(error: Exception) -> str:
    """Return msgspec's reason; the caller's sentence already says that the JSON is invalid."""
    reason = str(error).removeprefix("JSON is malformed: ")
    return reason[:1].lower() + reason[1:]


def _why(error: msgspec.DecodeError, text: bytes) -> str:
    """Return the reason, and the place of half a character, which msgspec does not name."""
    for match in _SURROGATES.finditer(text):
        if match[1]:
            code = match[1].decode()
            return f"\\u{code} at byte {match.start()} is a lone surrogate, half of a character"
    return why_malformed(error)
