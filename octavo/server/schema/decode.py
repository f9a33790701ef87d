"""From the bytes of a body to a struct; each way in which that can fail is told to the client."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from octavo.server.http.errors import ApiError, invalid
from octavo.server.schema.nested import Unknown, lenient_decoder, refused_name, unknown_names
from octavo.server.schema.unsupported import IGNORED, UNSUPPORTED, check_unsupported, read_over

T = TypeVar("T", bound=msgspec.Struct)

MAX_NESTING = 100
MAX_LISTS = 128  # of token ids in one field
# Fields whose insides no type bounds; how deep they may be is looked at when they are read.
OPEN = frozenset({"documents", "chat_template_kwargs"})
_LISTS = re.compile(rb"\s*\[\s*\[")
_FEW_WORDS_BYTES = 4096
_NUMBER_BYTES = 64
_MANY_WORDS = object()  # equal to nothing that asks for nothing
_CUT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_SAFE = re.compile(r"^[A-Za-z0-9._:\-\[\]]{1,192}$")
_MOST_IN_HEADER = 16
# msgspec's names for what JSON calls otherwise.
_WORDS = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
_WORD = re.compile(rf"\b({'|'.join(_WORDS)})\b")
_MISSING = re.compile(r"required field (\w+)")
_WHERE = re.compile(r"^(?P<what>.*?)(?: - at `(?P<key>key in )?\$(?P<path>.*)`)?$", re.DOTALL)


def decode(body: bytes, kind: type[T]) -> tuple[T, tuple[Unknown, ...]]:
    """The request, and the fields that nobody knows, those inside of others included.

    The body is cut into its fields first, and each that is known is read by its own type. What
    nobody knows is never built, so that a body full of it costs no more than reading it over.
    """
    parts = _parts(body)
    asked = {name: _glance(parts[name]) for name in parts.keys() & UNSUPPORTED.keys()}
    check_unsupported(asked)
    fields = _fields(kind)
    values: dict[str, Any] = {}
    nested = [
        Unknown(f"{outer}.{name[:64]}", name, known) for outer, name, known in read_over(asked)
    ]
    for name, field in fields.items():
        if name in parts:
            values[name] = field.read(parts[name], nested)
        elif field.is_required:
            raise invalid(f"{name} is missing", name)
    unknown = parts.keys() - fields.keys() - UNSUPPORTED.keys() - IGNORED.keys()
    known = kind.__struct_fields__
    return kind(**values), (*(Unknown(name, name, known) for name in sorted(unknown)), *nested)


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of a request."""

    name: str
    type: Callable[[], msgspec.inspect.Type]  # worked out when it is first asked for
    choices: tuple[str, ...]  # of a literal; else empty
    decoder: msgspec.json.Decoder[Any]
    lenient: Callable[[], msgspec.json.Decoder[Any]]  # reads over what nobody knows; likewise
    is_required: bool
    is_integer: bool
    is_open: bool  # holds what its type says nothing of

    def read(self, part: msgspec.Raw, unknown: list[Unknown]) -> Any:
        """Its value; raises ApiError for what it cannot be. What is unknown inside is added."""
        if _LISTS.match(part) and bytes(part).count(b"[") > MAX_LISTS + 1:
            # Told before a million of them are built: nothing else here takes lists of lists.
            raise invalid(f"{self.name} has more than {MAX_LISTS} lists", self.name)
        try:
            value = self._value(part, unknown)
        except UnicodeDecodeError:
            raise invalid(f"{self.name} is not valid JSON: it is not UTF-8", self.name) from None
        except msgspec.DecodeError as error:  # what can be read over, and yet is no text
            raise invalid(f"{self.name} is not valid JSON: {_why(error)}", self.name) from None
        except RecursionError:
            raise _too_deep(self.name) from None
        if self.is_open and not _is_shallow(value):
            raise _too_deep(self.name)
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
        """msgspec's words as a client's, with the field in front."""
        found = _WHERE.match(text)
        assert found is not None  # the pattern matches anything
        what, path = found["what"], found["path"] or ""
        if self.choices and what.startswith("Invalid enum value"):
            given = what.removeprefix("Invalid enum value ")
            among = ", ".join(map(repr, self.choices))
            return invalid(f"{self.name}: expected one of {among}, got {given}", self.name)
        what = _WORD.sub(lambda match: _WORDS[match[1]], _lower(what.replace("`", "")))
        what = what.replace("object | null", "object").replace(" | ", " or ")
        if path.startswith("[...]"):  # the value of a key, which msgspec does not name
            what += f" under {_first_bad_key(part)!r}"
            path = ""
        path = self.name + path
        if missing := _MISSING.search(what):
            path = f"{path}.{missing[1]}"
            return invalid(f"{path} is missing", path)
        if found["key"]:
            what += ", as a key"
        return invalid(f"{path}: {what}", path)


@lru_cache(maxsize=64)
def _fields(kind: type[msgspec.Struct]) -> Mapping[str, _Field]:
    bare = get_type_hints(kind)  # without their bounds
    return {
        field.name: _Field(
            field.name,
            cache(partial(msgspec.inspect.type_info, field.type)),
            _choices(bare[field.name]),
            msgspec.json.Decoder(field.type),
            cache(partial(lenient_decoder, field.type)),
            field.required,
            _is_integer(bare[field.name]),
            field.name in OPEN,
        )
        for field in msgspec.structs.fields(kind)
    }


def _parts(body: bytes) -> dict[str, msgspec.Raw]:
    """The body's fields, each still as it was written."""
    try:
        return _CUT.decode(body)
    except msgspec.ValidationError:
        raise invalid("the body must be a JSON object") from None
    except msgspec.DecodeError as error:
        raise invalid(f"the body is not valid JSON: {_why(error)}") from None
    except UnicodeDecodeError:
        raise invalid("the body is not valid JSON: it is not UTF-8") from None
    except RecursionError:
        raise _too_deep(None) from None


def _glance(part: msgspec.Raw) -> Any:
    """The value of what would be taken only if it asked for nothing, which takes few words."""
    if len(memoryview(part)) > _FEW_WORDS_BYTES:
        return _MANY_WORDS
    try:
        return msgspec.json.decode(part)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return _MANY_WORDS


def _whole(part: msgspec.Raw) -> int | None:
    """1.0 is a whole number, whoever wrote it."""
    if len(memoryview(part)) > _NUMBER_BYTES:
        return None
    try:
        value = msgspec.json.decode(part)
    except msgspec.ValidationError:  # no number that there is, as 1e400
        return None
    return int(value) if isinstance(value, float) and value.is_integer() else None


def _too_deep(name: str | None) -> ApiError:
    what = "the body" if name is None else name
    return invalid(f"{what} is nested deeper than {MAX_NESTING} levels", name)


def _is_shallow(value: Any) -> bool:
    """Level after level, without recursion; flat lists of numbers are not walked twice."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_NESTING):
        deeper: list[Any] = []
        for item in level:
            children = item.values() if isinstance(item, dict) else item
            deeper.extend(child for child in children if isinstance(child, dict | list))
        if not deeper:
            return True
        level = deeper
    return False


# What other dialects, or other routes, call a field; by letters another one would be nearer.
_OTHER_NAMES = {
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "max_length": "max_tokens",
    "repeat_penalty": "repetition_penalty",
}


def refuse_unknown(unknown: tuple[Unknown, ...]) -> None:
    """In strict mode an unknown field is an error, with the likeliest that was meant."""
    if not unknown:
        return
    path, name, known = unknown[0]
    near = [field for field in (_OTHER_NAMES.get(name),) if field in known]
    near = near or difflib.get_close_matches(name[:64], known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise invalid(f"unknown field {path[:192]!r}{hint}", path[:192], "unknown_parameter")


def named_in_header(unknown: tuple[Unknown, ...]) -> bytes:
    """Names are a client's own words: only what is safe in a header is repeated, and not all."""
    safe = [each.path for each in unknown if _SAFE.match(each.path)]
    return ",".join(safe[:_MOST_IN_HEADER]).encode()


def _is_integer(hint: Any) -> bool:
    arguments = getattr(hint, "__args__", ())
    return hint is int or (type(None) in arguments and int in arguments)


def _choices(hint: Any) -> tuple[str, ...]:
    """Of a literal, which may be one of several types."""
    for each in (hint, *get_args(hint)):
        if get_origin(each) is Literal:
            return get_args(each)
    return ()


def _first_bad_key(part: msgspec.Raw) -> str:
    """Of an object whose values must be numbers."""
    for key, value in _CUT.decode(part).items():
        try:
            msgspec.json.decode(value, type=float)
        except msgspec.ValidationError:
            return key[:64]
    return ""


def _why(error: msgspec.DecodeError) -> str:
    """What is wrong with the JSON; that it is wrong, the sentence around it says."""
    return _lower(str(error).removeprefix("JSON is malformed: "))


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
