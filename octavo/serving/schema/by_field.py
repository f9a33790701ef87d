"""The slow decoder: reads a body one field at a time, to explain an error or find unknown fields.

`decode` uses it for large bodies, and when the decoder of the whole request has refused a body.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, TypeVar, get_type_hints

import msgspec

from octavo.serving.schema.given import with_given
from octavo.serving.schema.near_names import not_among
from octavo.serving.schema.nested import Unknown, lenient_decoder, refused_name, unknown_names
from octavo.serving.schema.rules import rules_of
from octavo.serving.schema.types_at import choices_at, misplaced, takes_objects
from octavo.transport.errors import ApiError, invalid

T = TypeVar("T", bound=msgspec.Struct)

MAX_NESTING = 100
MAX_OPEN_VALUES = 1 << 16  # in a field that may hold any JSON
MAX_UNKNOWN = 256  # unknown fields of one body
MAX_NAME_CHARACTERS = 200  # of an unknown field, as it is reported
MAX_LISTS = 2048  # lists of token ids in one field
_NEITHER_QUOTE_NOR_BRACKET = bytes(each for each in range(256) if each not in b'"[')
_UNSUPPORTED_BYTES = 4096  # a value that asks for nothing is shorter
_NUMBER_BYTES = 64
_TOO_LONG = object()  # compares unequal to every value that asks for nothing
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
# JSON's names for the types that msgspec names as Python does.
_WORDS = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
# An escaped pair, another escape, or half of a pair in the group.
_SURROGATES = re.compile(
    rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u([dD][89a-fA-F][0-9a-fA-F]{2})|\\.", re.DOTALL
)
_WORD = re.compile(rf"\b({'|'.join(_WORDS)})\b")
_WRONG_CHOICE = "Invalid enum value "
_MISSING = re.compile(r"required field (\w+)")
# In a pattern, as msgspec writes it: "$" of ECMAScript, which differs from Python's.
_END_OF_TEXT = r"(?![\\s\\S])"
_WHERE = re.compile(r"^(?P<what>.*?)(?: - at `(?P<key>key`? in `?)?\$(?P<path>.*)`)?\Z", re.DOTALL)


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
            values[name] = field.read(parts[name], nested)
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


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of a request."""

    name: str
    type: Callable[[], msgspec.inspect.Type]  # computed at the first call
    decoder: msgspec.json.Decoder[Any]
    lenient: Callable[[], msgspec.json.Decoder[Any]]  # skips unknown fields
    is_required: bool
    is_integer: bool
    is_open: bool  # may hold any JSON
    may_hold_lists: bool  # of token ids

    def read(self, part: msgspec.Raw, unknown: list[Unknown]) -> Any:
        """Return the value and append its unknown fields to `unknown`; or raise ApiError."""
        if self.may_hold_lists and _has_many_lists(part):
            # Refused before a million lists are built.
            raise invalid(f"{self.name} has more than {MAX_LISTS} lists", self.name)
        try:
            value = self._value(part, unknown)
        except UnicodeDecodeError:
            raise invalid(f"{self.name} is not valid JSON: it is not UTF-8", self.name) from None
        except msgspec.DecodeError as error:  # valid to skip, but not to decode
            why = _why(error, bytes(part))
            raise invalid(f"{self.name} is not valid JSON: {why}", self.name) from None
        except RecursionError:
            raise _too_deep(self.name) from None
        if self.is_open:
            depth, num_values = extent(value)
            if depth > MAX_NESTING:
                raise _too_deep(self.name)
            if num_values > MAX_OPEN_VALUES:
                raise invalid(f"{self.name} has more than {MAX_OPEN_VALUES} values", self.name)
        return value

    def _value(self, part: msgspec.Raw, unknown: list[Unknown]) -> Any:
        try:
            try:
                return self.decoder.decode(part)
            except msgspec.ValidationError as error:
                refused = refused_name(error, self.name)
                if refused is None:
                    raise
            value = self.lenient().decode(part)
            unknown += unknown_names(part, self.type, refused, self.name)
            return value
        except msgspec.ValidationError as error:
            whole = _whole(part) if self.is_integer else None
            if whole is None:
                raise self._explained(str(error), part) from None
        return self.read(msgspec.Raw(b"%d" % whole), unknown)

    def _explained(self, text: str, part: msgspec.Raw) -> ApiError:
        """Return msgspec's message in JSON's terms, with the path of the field in front."""
        what, path, is_key = _in_words(text)
        if what.startswith(_WRONG_CHOICE) and (choices := choices_at(self.type(), path)):
            others = " or an object" if takes_objects(self.type(), path) else ""
            given = what.removeprefix(_WRONG_CHOICE)
            value = given[1:-1] if given.startswith("'") else int(given)
            return not_among(self.name + path, choices, value, others)
        if not is_key:
            what = with_given(what, part, path)
        if missing := _MISSING.search(what):
            names = misplaced(part, self.type(), path, missing[1])
            path = f"{self.name}{path}.{missing[1]}"
            return invalid(f"{path} is missing{_belong(names, missing[1])}", path)
        path = self.name + path
        if is_key:
            what += ", as a key"
        return invalid(f"{path}: {what}", path)


@lru_cache(maxsize=64)
def fields_of(kind: type[msgspec.Struct]) -> Mapping[str, _Field]:
    """Return the fields of a request's struct, each with what reads it alone."""
    rules = rules_of(kind)
    bare = get_type_hints(kind)  # without the bounds
    return {
        field.name: _Field(
            field.name,
            cache(partial(msgspec.inspect.type_info, field.type)),
            msgspec.json.Decoder(field.type),
            cache(partial(lenient_decoder, field.type)),
            field.required,
            _is_integer(bare[field.name]),
            field.name in rules.open,
            field.name in rules.with_lists,
        )
        for field in msgspec.structs.fields(kind)
    }


def _parts(body: bytes) -> dict[str, msgspec.Raw]:
    """Split the body into its fields, each left as JSON."""
    if not body.strip():
        raise invalid("the body is empty; it must be a JSON object")
    try:
        return _OBJECT.decode(body)
    except msgspec.ValidationError:
        raise invalid("the body must be a JSON object") from None
    except msgspec.DecodeError as error:
        raise invalid(f"the body is not valid JSON: {_why(error, body)}") from None
    except UnicodeDecodeError:
        raise invalid("the body is not valid JSON: it is not UTF-8") from None
    except RecursionError:
        raise _too_deep(None) from None


def _has_many_lists(part: msgspec.Raw) -> bool:
    """Return whether a list holds more than MAX_LISTS lists; brackets in strings do not count."""
    if bytes(memoryview(part)[:1]) != b"[":
        return False
    text = bytes(part)
    if text.count(b"[") <= MAX_LISTS + 1:
        return False
    text = text.replace(rb"\\", b"").replace(rb"\"", b"")  # in this order, as a parser reads them
    text = text.translate(None, _NEITHER_QUOTE_NOR_BRACKET)
    # Removing pairs of quotes, which are most, moves no bracket into a string or out of one.
    outside_strings = text.replace(b'""', b"").split(b'"')[::2]
    return sum([each.count(b"[") for each in outside_strings]) > MAX_LISTS + 1


def _short_value(part: msgspec.Raw) -> Any:
    """Decode the value of an unsupported field; long values certainly ask for something."""
    if len(memoryview(part)) > _UNSUPPORTED_BYTES:
        return _TOO_LONG
    try:
        return msgspec.json.decode(part)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return _TOO_LONG


def _whole(part: msgspec.Raw) -> int | None:
    """Return a number such as 1.0 as an integer, or None if it is not whole."""
    if len(memoryview(part)) > _NUMBER_BYTES:
        return None
    try:
        value = msgspec.json.decode(part)
    except msgspec.ValidationError:  # out of range, as 1e400 is
        return None
    return int(value) if isinstance(value, float) and value.is_integer() else None


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


def _is_integer(hint: Any) -> bool:
    arguments = getattr(hint, "__args__", ())
    return hint is int or (type(None) in arguments and int in arguments)


def _belong(names: Sequence[str], place: str) -> str:
    """Return a hint for an error: names that were sent beside the field that should hold them."""
    if not names:
        return ""
    verb = "belongs" if len(names) == 1 else "belong"
    return f"; {' and '.join(names)} {verb} under {place}"


def _in_words(text: str) -> tuple[str, str, bool]:
    """Return msgspec's message in JSON's terms, the value's path, and whether a key is wrong."""
    found = _WHERE.match(text)
    assert found is not None  # the pattern matches anything
    what = found["what"].replace(_END_OF_TEXT, "$")
    if not what.startswith(_WRONG_CHOICE):
        what = _WORD.sub(lambda match: _WORDS[match[1]], _lower(what.replace("`", "")))
        what = what.replace("object | null", "object").replace(" | ", " or ")
    return what, found["path"] or "", bool(found["key"])


def why_malformed(error: Exception) -> str:
    """Return msgspec's reason; the caller's sentence already says that the JSON is invalid."""
    return _lower(str(error).removeprefix("JSON is malformed: "))


def _why(error: msgspec.DecodeError, text: bytes) -> str:
    """Return the reason, and the place of half a character, which msgspec does not name."""
    for match in _SURROGATES.finditer(text):
        if match[1]:
            code = match[1].decode()
            return f"\\u{code} at byte {match.start()} is a lone surrogate, half of a character"
    return why_malformed(error)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
