"""The value that breaks a bound, for the error that names the bound."""

from __future__ import annotations

import re
from typing import Any

import msgspec

MAX_BYTES = 64 << 10  # a larger field is not searched for its wrong value
MAX_CHARACTERS = 32  # of a number

_BOUND = re.compile(r"([<>]=? -?[0-9][0-9.e+-]*|out of range)\Z")
_STEP = re.compile(r"\[(?P<index>[0-9]+)\]|\.(?P<name>[^.\[]+)")
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_STRING = msgspec.json.Decoder(str)


def with_given(what: str, part: msgspec.Raw, path: str) -> str:
    """Return an error's text; after a bound, with the number or the length that breaks it.

    `path` leads from the field to the wrong value. A string's own text is not repeated.
    """
    if len(memoryview(part)) > MAX_BYTES or not _BOUND.search(what):
        return what
    found = value_at(part, path)
    return what if found is None else f"{what}, got {_short(found)}"


def value_at(part: msgspec.Raw, path: str) -> msgspec.Raw | None:
    """Return the value at the end of a path; None if the path does not name each step."""
    at = 0
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            return None
        at = step.end()
        if step["name"] is None:
            part = _ARRAY.decode(part)[int(step["index"])]
        else:
            part = _OBJECT.decode(part)[step["name"]]
    return part


def _short(part: msgspec.Raw) -> str:
    kinds: dict[bytes, Any] = {b'"': _STRING, b"[": _ARRAY, b"{": _OBJECT}
    kind = kinds.get(bytes(memoryview(part)[:1]))
    if kind is not None:
        return str(len(kind.decode(part)))
    text = bytes(memoryview(part)[: MAX_CHARACTERS + 1]).decode()
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…"
