"""A reader of Python's literals inside a text that comes in pieces; it writes them as JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable

from octavo.formats.bodies.values import escaped
from octavo.formats.reader import MismatchError, Reader, Steps

MAX_DEPTH = 64
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD_END = re.compile(r"[^\w.+\-]")
_STRING_END = {quote: re.compile(rf"[{quote}\\]") for quote in "'\""}
_CONSTANTS = {
    "True": "true",
    "False": "false",
    "None": "null",
    "true": "true",
    "false": "false",
    "null": "null",
}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0"}
_CODES = {"x": 2, "u": 4, "U": 8}
_CLOSES = {"[": "]", "(": ")", "{": "}"}


def copy_literal(reader: Reader, emit: Callable[[str], object], depth: int = 0) -> Steps[None]:
    """Read a literal and write its JSON; raise MismatchError where it is none."""
    if depth > MAX_DEPTH:
        raise MismatchError
    yield from reader.space()
    first = yield from reader.peek()
    if first in _STRING_END:
        yield from _copy_string(reader, emit)
    elif first in _CLOSES:
        yield from _copy_collection(reader, emit, depth)
    else:
        word = yield from reader.word(_WORD_END)
        emit(_CONSTANTS.get(word) or _number(word))


def _copy_collection(reader: Reader, emit: Callable[[str], object], depth: int) -> Steps[None]:
    """Read a list, a tuple or a dictionary."""
    opening = reader.take(1)
    is_object, close = opening == "{", _CLOSES[opening]
    emit("{" if is_object else "[")
    separator = ""
    while True:
        yield from reader.space()
        if (yield from reader.skip(close)):
            emit("}" if is_object else "]")
            return
        emit(separator)
        if is_object:
            yield from _copy_key(reader, emit, depth)
        yield from copy_literal(reader, emit, depth + 1)
        yield from reader.space()
        if not (yield from reader.skip(",")) and not (yield from reader.is_at(close)):
            raise MismatchError
        separator = ", "


def _copy_key(reader: Reader, emit: Callable[[str], object], depth: int) -> Steps[None]:
    """Read the key of a dictionary, which becomes a string, and the colon."""
    parts: list[str] = []
    yield from copy_literal(reader, parts.append, depth + 1)
    key = "".join(parts)
    if key[:1] in "{[":
        raise MismatchError
    emit(key if key.startswith('"') else json.dumps(key))
    yield from reader.pieces((":",))
    emit(": ")


def _copy_string(reader: Reader, emit: Callable[[str], object]) -> Steps[None]:
    """Read a string in any of Python's quotes."""
    quote = reader.take(1)
    if (yield from reader.peek(2)) == quote * 2:
        close = quote * 3
        reader.take(2)
    else:
        close = quote
    emit('"')
    while True:
        character = yield from reader.run(_STRING_END[quote], lambda text: emit(escaped(text)))
        if not character:
            raise MismatchError
        if character == "\\":
            emit(escaped((yield from _escape(reader))))
        elif (yield from reader.skip(close)):
            emit('"')
            return
        else:
            emit(escaped(reader.take(1)))


def _escape(reader: Reader) -> Steps[str]:
    """Read an escape sequence and return what it stands for."""
    pair = yield from reader.peek(2)
    if len(pair) < 2:
        raise MismatchError
    reader.take(2)
    kind = pair[1]
    if kind in _CODES:
        digits = yield from reader.peek(_CODES[kind])
        try:
            character = chr(int(digits, 16))
        except (ValueError, OverflowError):
            return pair
        if len(digits) < _CODES[kind] or "\ud800" <= character <= "\udfff":
            return pair
        reader.take(len(digits))
        return character
    if kind == "\n":
        return ""
    return _ESCAPES.get(kind, kind if kind in "'\"\\" else pair)


def _number(text: str) -> str:
    """Return the JSON of a number of Python's; raise MismatchError for anything else."""
    if _JSON_NUMBER.fullmatch(text):
        return text
    try:
        return str(int(text, 0))  # which fails too if it has too many digits
    except ValueError:
        try:
            value = float(text)
        except ValueError:
            raise MismatchError from None
        if not math.isfinite(value):
            raise MismatchError from None
    return json.dumps(value)
