"""Readers of JSON inside a text that comes in pieces; they copy what models write, right or not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache

from octavo.formats.reader import MismatchError, Reader, Steps

_INSIDE_STRING = re.compile(r'["\\]')
_STRUCTURE = '"{}[]'


@lru_cache(maxsize=64)
def _ends(characters: str, stop: str) -> re.Pattern[str]:
    return re.compile(f"[{re.escape(characters + stop[:1])}]")


def copy_string(reader: Reader, emit: Callable[[str], object]) -> Steps[bool]:
    """Copy a JSON string as it is written; return whether it was closed."""
    emit(reader.take(1))
    while True:
        character = yield from reader.run(_INSIDE_STRING, emit)
        if not character:
            return False
        if character == '"':
            emit(reader.take(1))
            return True
        escaped = yield from reader.peek(2)
        emit(reader.take(len(escaped)))


def copy_value(reader: Reader, emit: Callable[[str], object], stop: str = "") -> Steps[None]:
    """Copy a JSON value as it is written, up to its end, or up to `stop` outside its strings."""
    first = yield from reader.peek()
    if first == '"':
        yield from copy_string(reader, emit)
        return
    if first not in ("{", "["):
        yield from reader.run(_ends(",}] \t\r\n", stop), emit)
        return
    depth, structure = 0, _ends(_STRUCTURE, stop)
    while True:
        character = yield from reader.run(structure, emit)
        if not character or (stop and (yield from reader.is_at(stop))):
            return
        if character == '"':
            yield from copy_string(reader, emit)
            continue
        emit(reader.take(1))
        depth += (character in "{[") - (character in "}]")
        if depth <= 0:
            return


def copy_arguments(reader: Reader, emit: Callable[[str], object], stop: str = "") -> Steps[None]:
    """Copy the arguments of a call; a string that holds them is unpacked, null becomes {}."""
    first = yield from reader.peek()
    if first in ("{", "["):
        yield from copy_value(reader, emit, stop)
        return
    parts: list[str] = []
    yield from copy_value(reader, parts.append, stop)
    text = "".join(parts)
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        value = text
    emit("{}" if value is None else value if isinstance(value, str) else text)


def read_string(reader: Reader) -> Steps[str]:
    """Read a JSON string and return what it stands for; raise MismatchError if there is none."""
    if not (yield from reader.is_at('"')):
        raise MismatchError
    parts: list[str] = []
    is_closed = yield from copy_string(reader, parts.append)
    try:
        text = json.loads("".join(parts), strict=False) if is_closed else None
    except ValueError:
        text = None
    if not isinstance(text, str):
        raise MismatchError
    return text


def stop_of(pieces: list[str]) -> str:
    """Return the string that ends a call although its JSON is still open, if that is safe."""
    text = next((piece.strip() for piece in pieces if piece.strip()), "")
    return "" if text[:1] in '{}[]",:' else text
