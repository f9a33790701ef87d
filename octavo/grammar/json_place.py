"""Where a text stands in its JSON, as far as that determines what may follow inside a string.

Most objects and arrays constrain each value by itself. What may follow in them depends on the keys
so far or on the number of items, and no longer on the values that are complete. So texts with equal
keys, in strings of equal length, have equal masks, whatever else they consist of.

That is relied on where it certainly holds: inside a string without escapes that has no keyword but
its lengths and that one more character fits into, within objects and arrays that have only the
keywords below. Elsewhere nothing is said.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

# Between the parts of JSON: a few blanks, or one or two line breaks and an indentation. Bounds keep
# a model from writing nothing but whitespace; 64 blanks indent sixteen levels by four.
WHITESPACE: Final = r"[\x20\x09]{1,4}|(\x0D?\x0A){1,2}[\x20\x09]{0,64}"
PREFIX: Final = "start: %json "  # of a grammar that is a schema alone
MAX_CHARACTERS = 1 << 16  # of a grammar that is read again
MAX_KNOWN = 64  # places behind the last tokens
MAX_REFERENCES = 8  # that are followed one after the other
_OPTIONS = ({"whitespace_flexible": False}, {"whitespace_pattern": WHITESPACE})
_ROOT = {"$defs", "x-guidance"}
_OBJECT = {"type", "properties", "required", "additionalProperties"}
_ARRAY = {"type", "items", "minItems", "maxItems"}
_STRING = {"type", "minLength", "maxLength"}
_STRINGS = '"type": "string"'
_PARTS = re.compile(rb'[{}\[\],:"]')
_STRING_PARTS = re.compile(rb'["\\]')

Schema = Mapping[str, Any]
Key = tuple[Any, ...]


class _Level(Struct, frozen=True):
    """An open object or array."""

    schema: Schema | None  # None: what may follow depends on more than keys and numbers
    is_object: bool
    keys: tuple[bytes, ...] = ()
    num_items: int = 0
    has_colon: bool = False  # a value comes next, not a key

    def key(self) -> Key:
        """Return what determines how it may go on."""
        if self.is_object:
            return self.keys
        assert self.schema is not None
        least, most = self.schema.get("minItems", 0), self.schema.get("maxItems")
        return (self.num_items if most is not None else min(self.num_items, least),)


class JsonPlace(Struct, frozen=True):
    """A place in a text of a schema; `after` returns the next one."""

    root: Schema
    levels: tuple[_Level, ...] = ()
    within: Literal["", "key", "string"] = ""  # which kind of string; empty: none
    begun: bytes = b""  # of a key, or of a character
    num_characters: int = 0  # complete ones of the string
    has_escapes: bool = False
    is_escaped: bool = False  # the next byte is

    def after(self, piece: bytes) -> JsonPlace:
        """Return the place behind these bytes, which the grammar allows here."""
        place, at = self, 0
        while at < len(piece):
            parts = _STRING_PARTS if place.within else _PARTS
            if place.is_escaped:
                place = replace(place, begun=place.begun + piece[at : at + 1], is_escaped=False)
                at += 1
                continue
            found = parts.search(piece, at)
            end = len(piece) if found is None else found.start()
            if place.within and end > at:
                place = place._inside(piece[at:end])
            if found is not None:
                place = place._at_part(found[0])
            at = end + 1
        return place

    def key(self, longest: int) -> Key | None:
        """Return a key: places with equal keys have equal masks; None if nothing is known.

        No token has more than `longest` bytes.
        """
        if self.within != "string" or self.has_escapes:
            return None
        if any(level.schema is None for level in self.levels):
            return None
        schema = self._schema()
        if schema is None or schema.get("type") != "string" or schema.keys() - _ROOT - _STRING:
            return None
        most = schema.get("maxLength")
        room = longest if most is None else min(longest, most - self.num_characters)
        if room <= 0:
            return None
        missing = min(longest, max(0, schema.get("minLength", 0) - self.num_characters))
        return (room, missing, self.begun, *(level.key() for level in self.levels))

    def _inside(self, piece: bytes) -> JsonPlace:
        """Return the place behind a part of a string without quotes."""
        if self.within == "key":
            return replace(self, begun=self.begun + piece)
        begun = self.begun + piece
        try:
            count, rest = len(begun.decode()), b""
        except UnicodeDecodeError as error:
            count, rest = len(begun[: error.start].decode()), begun[error.start :]
        return replace(self, begun=rest, num_characters=self.num_characters + count)

    def _at_part(self, part: bytes) -> JsonPlace:
        """Take a byte that means something in JSON."""
        if part == b"\\":
            begun = self.begun + part
            return replace(self, begun=begun, has_escapes=True, is_escaped=True)
        if part == b'"':
            return self._at_quote()
        if part in b"{[":
            schema = self._schema()
            is_object = part == b"{"
            names, kind = (_OBJECT, "object") if is_object else (_ARRAY, "array")
            is_plain = schema is not None and schema.get("type") == kind
            if schema is None or not is_plain or schema.keys() - _ROOT - names:
                schema = None
            return replace(self, levels=(*self.levels, _Level(schema, is_object)))
        *outer, level = self.levels
        if part in b"}]":
            return replace(self, levels=tuple(outer))
        if part == b":":
            level = replace(level, has_colon=True)
        else:
            level = replace(level, has_colon=False, num_items=level.num_items + 1)
        return replace(self, levels=(*outer, level))

    def _at_quote(self) -> JsonPlace:
        """Begin a string, or end it."""
        within: Literal["", "key", "string"] = ""
        levels = self.levels
        if not self.within:
            is_key = bool(levels) and levels[-1].is_object and not levels[-1].has_colon
            within = "key" if is_key else "string"
        elif self.within == "key":
            last = replace(levels[-1], keys=(*levels[-1].keys, self.begun))
            levels = (*levels[:-1], last)
        return JsonPlace(self.root, levels, within)

    def _schema(self) -> Schema | None:
        """Return the schema of the value that stands here; None if it is not known."""
        if not self.levels:
            return self.root
        level = self.levels[-1]
        if level.schema is None:
            return None
        found: Any
        if level.is_object:
            key = level.keys[-1]
            if b"\\" in key:
                return None
            found = level.schema.get("properties", {}).get(key.decode())
        else:
            found = level.schema.get("items")
        for _ in range(MAX_REFERENCES):
            if not isinstance(found, dict) or found.keys() != {"$ref"}:
                break
            found = self.root.get("$defs", {}).get(found["$ref"].rpartition("/")[2])
        return found if isinstance(found, dict) and "$ref" not in found else None


@lru_cache(maxsize=64)
def place_in(grammar: str) -> JsonPlace | None:
    """Return the beginning of the texts of a grammar; None if nothing can be known of them."""
    if not grammar.startswith(PREFIX) or len(grammar) > MAX_CHARACTERS or _STRINGS not in grammar:
        return None
    try:
        root = json.loads(grammar[len(PREFIX) :])
    except (ValueError, RecursionError):  # it goes on behind the schema
        return None
    if not isinstance(root, dict) or root.get("x-guidance") not in _OPTIONS:
        return None
    return JsonPlace(root)


class Places:
    """The places behind the last tokens of a text."""

    def __init__(self, start: JsonPlace, tokens: Sequence[bytes]) -> None:
        self._start = start
        self._tokens = tokens
        self._known: deque[JsonPlace] = deque((start,), maxlen=MAX_KNOWN)
        self._num_tokens = 0  # before the last of these

    def behind(self, text: Sequence[int]) -> JsonPlace:
        """Return the place behind a text, which begins as the one before."""
        if not self._known:
            self._known.append(self._start)
            self._num_tokens = 0
        for index in range(self._num_tokens, len(text)):
            self._known.append(self._known[-1].after(self._tokens[text[index]]))
        self._num_tokens = len(text)
        return self._known[-1]

    def roll_back(self, num_tokens: int) -> None:
        """Keep only what holds for a text of so many tokens."""
        while self._known and self._num_tokens > num_tokens:
            self._known.pop()
            self._num_tokens -= 1

    def copy(self) -> Places:
        """Return the same places for a text that goes on by itself."""
        made = Places(self._start, self._tokens)
        made._known, made._num_tokens = self._known.copy(), self._num_tokens
        return made
