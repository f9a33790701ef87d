"""From the bytes of a body to a struct; each way in which that can fail is told to the client."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar, get_type_hints

import msgspec

from octavo.server.errors import invalid
from octavo.server.schema.unsupported import IGNORED, UNSUPPORTED, check_unsupported

T = TypeVar("T", bound=msgspec.Struct)

MAX_NESTING = 100
_WHERE = re.compile(r"^(?P<what>.*?)(?: - at `(?P<key>key in )?\$(?P<path>.*)`)?$", re.DOTALL)


def decode(body: bytes, kind: type[T]) -> tuple[T, tuple[str, ...]]:
    """The request, and the names of fields that nobody knows."""
    given = _parse(body)
    if not isinstance(given, dict):
        raise invalid("the body must be a JSON object")
    check_unsupported(given)
    fields = integer_fields(kind)
    for name in fields & given.keys():  # 1.0 is a whole number, whoever wrote it
        value = given[name]
        if isinstance(value, float) and value.is_integer():
            given[name] = int(value)
    try:
        request = msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise _explained(str(error)) from None
    except RecursionError:
        raise invalid(f"the body is nested deeper than {MAX_NESTING} levels") from None
    known = frozenset(kind.__struct_fields__)
    unknown = given.keys() - known - UNSUPPORTED.keys() - IGNORED.keys()
    return request, tuple(sorted(unknown))


def _parse(body: bytes) -> Any:
    try:
        given = msgspec.json.decode(body)
    except msgspec.ValidationError as error:
        raise _explained(str(error)) from None
    except msgspec.DecodeError as error:
        raise invalid(f"the body is not valid JSON: {_lower(str(error))}") from None
    except UnicodeDecodeError:
        raise invalid("the body is not valid JSON: it is not UTF-8") from None
    except RecursionError:
        raise invalid(f"the body is nested deeper than {MAX_NESTING} levels") from None
    if not _is_shallow(given):
        raise invalid(f"the body is nested deeper than {MAX_NESTING} levels")
    return given


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


def refuse_unknown(unknown: tuple[str, ...], kind: type[msgspec.Struct]) -> None:
    """In strict mode an unknown field is an error, with the likeliest that was meant."""
    if not unknown:
        return
    name = unknown[0]
    near = difflib.get_close_matches(name[:64], kind.__struct_fields__, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise invalid(f"unknown field {name[:64]!r}{hint}", name[:64], "unknown_parameter")


@lru_cache(maxsize=64)
def integer_fields(kind: type[msgspec.Struct]) -> frozenset[str]:
    """The fields that are whole numbers."""
    hints: Mapping[str, Any] = get_type_hints(kind)
    return frozenset(name for name, hint in hints.items() if _is_integer(hint))


def _is_integer(hint: Any) -> bool:
    arguments = getattr(hint, "__args__", ())
    return hint is int or (type(None) in arguments and int in arguments)


def _explained(text: str) -> Exception:
    """msgspec's words, with the field in front; they speak of the schema and hold no data."""
    found = _WHERE.match(text)
    assert found is not None  # the pattern matches anything
    path = (found["path"] or "").lstrip(".")
    what = _lower(found["what"].replace("`", "").replace("object | null", "object"))
    missing = re.search(r"required field (\w+)", what)
    if missing:
        path = f"{path}.{missing[1]}" if path else missing[1]
        return invalid(f"{path} is missing", path)
    if found["key"]:
        path += " (a key)"
    return invalid(f"{path}: {what}" if path else what, path or None)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
