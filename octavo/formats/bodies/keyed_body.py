"""Calls in the notation of Gemma: call:f{city:<escape>Paris<escape>,days:2}."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec import Struct

from octavo.formats.bodies.body import Context
from octavo.formats.bodies.json_text import copy_string
from octavo.formats.bodies.named_body import NAME_END
from octavo.formats.bodies.values import (
    ANNOTATIONS,
    KEY,
    cases,
    escaped,
    json_of,
    properties,
    resolved,
    standing_alone,
    type_of_case,
    types_of,
    unenforced_in_object,
    unenforced_in_string,
)
from octavo.formats.lark import Lark
from octavo.formats.protocol import Call, Tool
from octavo.formats.reader import Marks, MismatchError, Reader, Steps
from octavo.formats.sink import Sink

MAX_DEPTH = 64
ANY_OBJECT = f'"{{" ({KEY} ":" anything ("," {KEY} ":" anything)*)? "}}"'  # in a grammar
_BARE_END = re.compile(r"[,}\]<]")
_KEY_END = re.compile(r"[:,{}\[\]<]")


class KeyedBody(Struct, tag_field="kind", tag="keyed", frozen=True, forbid_unknown_fields=True):
    """A call whose keys are bare and whose strings stand between two equal marks."""

    quote: str
    before_name: str = "call:"

    def __post_init__(self) -> None:
        if not self.quote.strip():
            raise ValueError("`quote` is blank: it stands on both sides of a string")

    @property
    def marks(self) -> Collection[str]:
        return (self.quote,)

    @property
    def first(self) -> str:
        return ""

    def read(self, reader: Reader, sink: Sink, context: Context) -> Steps[None]:
        yield from reader.pieces((self.before_name,))
        name = yield from reader.word(NAME_END)
        context.check(name)
        if not (yield from reader.is_at("{")):
            raise MismatchError
        reader.release()
        sink.call(name)
        schema = context.schema(name)
        try:
            yield from self._copy(reader, sink.arguments, schema, schema, 0)
        except MismatchError:  # what is not in this notation goes out as it is written
            if context.stop:
                yield from reader.until(Marks((context.stop,)), sink.arguments)

    def write(self, call: Call, index: int) -> str:
        return f"{self.before_name}{call.name}{self._written(json.loads(call.arguments))}"

    def rule(self, tool: Tool, lark: Lark) -> str:
        schema = dict(tool.parameters or {})
        schema.setdefault("type", "object")
        head = lark.text(f"{self.before_name}{tool.name}")
        return f"{head} {self._value(schema, schema, lark, 0)}"

    def unenforced(self, tool: Tool) -> list[str]:
        schema = {"type": "object", **(tool.parameters or {})}
        return _unenforced(schema, schema, "", set(), self.quote)

    def _copy(
        self,
        reader: Reader,
        emit: Callable[[str], object],
        schema: Mapping[str, Any],
        root: Mapping[str, Any],
        depth: int,
    ) -> Steps[None]:
        """Read a value and write its JSON; raise MismatchError where there is none."""
        if depth > MAX_DEPTH:
            raise MismatchError
        yield from reader.space()
        first = yield from reader.peek()
        if first in ("{", "["):
            yield from self._copy_collection(reader, emit, resolved(schema, root), root, depth)
        elif first == '"':
            yield from copy_string(reader, emit)
        elif (yield from reader.skip(self.quote)):
            emit('"')
            end = Marks((self.quote,))
            if (yield from reader.until(end, lambda text: emit(escaped(text)))):
                emit('"')
        else:
            word = yield from reader.word(_BARE_END)
            if not word.strip():
                raise MismatchError
            emit(json_of(word.strip(), types_of(schema, root)))

    def _copy_collection(
        self,
        reader: Reader,
        emit: Callable[[str], object],
        schema: Mapping[str, Any],
        root: Mapping[str, Any],
        depth: int,
    ) -> Steps[None]:
        """Read an object or a list."""
        opening = reader.take(1)
        close = "}" if opening == "{" else "]"
        members = properties(schema, root) if opening == "{" else {}
        member: Any = schema.get("items", {}) if opening == "[" else {}
        emit(opening)
        separator = ""
        while True:
            yield from reader.space()
            if (yield from reader.skip(close)):
                emit(close)
                return
            emit(separator)
            if opening == "{":
                key = yield from self._read_key(reader)
                member = members.get(key, {})
                emit(f"{json.dumps(key, ensure_ascii=False)}: ")
            yield from self._copy(reader, emit, member, root, depth + 1)
            yield from reader.space()
            if not (yield from reader.skip(",")) and not (yield from reader.is_at(close)):
                raise MismatchError
            separator = ", "

    def _read_key(self, reader: Reader) -> Steps[str]:
        parts: list[str] = []
        if (yield from reader.skip(self.quote)):
            yield from reader.until(Marks((self.quote,)), parts.append)
        else:
            parts.append((yield from reader.word(_KEY_END)).strip().strip('"'))
        yield from reader.pieces((":",))
        return "".join(parts)

    def _written(self, value: Any) -> str:
        if isinstance(value, dict):
            members = (f"{key}:{self._written(one)}" for key, one in value.items())
            return f"{{{','.join(members)}}}"
        if isinstance(value, list):
            return f"[{','.join(map(self._written, value))}]"
        return f"{self.quote}{value}{self.quote}" if isinstance(value, str) else json.dumps(value)

    def _value(
        self, schema: Mapping[str, Any], root: Mapping[str, Any], lark: Lark, depth: int
    ) -> str:
        """Return the expression of a value with this schema, which may refer to itself."""
        if depth > MAX_DEPTH:
            return self._anything(lark)

        def make() -> str:
            choices = cases(schema, root)
            return " | ".join(self._case(one, root, lark, depth) for one in choices) or '""'

        return lark.once(schema, make)

    def _case(
        self, schema: Mapping[str, Any], root: Mapping[str, Any], lark: Lark, depth: int
    ) -> str:
        """Return the expression of a value of one type."""
        types = type_of_case(schema)
        if types == {"string"}:
            return f"{lark.text(self.quote)} {lark.string_until(schema, self.quote)}"
        if types == {"array"}:
            items = resolved(schema.get("items", {}), root)
            return f'"[" {_items(self._value(items, root, lark, depth + 1), schema)} "]"'
        members = properties(schema, root) if types == {"object"} else {}
        if members:
            rules = {
                key: f"{lark.text(key + ':')} {self._value(member, root, lark, depth + 1)}"
                for key, member in members.items()
            }
            required = schema.get("required") or ()
            return f'"{{" {lark.sequence(rules, required, separator=",")} "}}"'
        if types == {"object"}:
            self._anything(lark)
            return ANY_OBJECT
        return lark.json(standing_alone(schema, root)) if types else self._anything(lark)

    def _anything(self, lark: Lark) -> str:
        """Return the rule of a value of any type."""
        string = f"{lark.text(self.quote)} {lark.until(self.quote)}"
        scalar = lark.json({"type": ["number", "boolean", "null"]})
        array = '"[" (anything ("," anything)*)? "]"'
        return lark.rule("anything", f"{string} | {scalar} | {ANY_OBJECT} | {array}")


def _items(one: str, schema: Mapping[str, Any]) -> str:
    """Return the expression for the items of a list, as many as the schema allows."""
    fewest, most = schema.get("minItems", 0), schema.get("maxItems")
    if most == 0:
        return '""'
    rest = f'("," {one}){{{max(fewest - 1, 0)},{"" if most is None else most - 1}}}'
    return f"{one} {rest}" if fewest else f"({one} {rest})?"


def _unenforced(
    schema: Any, root: Mapping[str, Any], path: str, seen: set[int], quote: str
) -> list[str]:
    """Return the paths of keywords that `_value` ignores, from this part of a schema on."""
    schema = resolved(schema, root)
    if id(schema) in seen or path.count(".") > 2 * MAX_DEPTH:
        return []
    seen.add(id(schema))
    found: list[str] = []
    for case in cases(schema, root):
        types = type_of_case(case)
        if types == {"string"}:
            found += [f"{path}{name}" for name in unenforced_in_string(case, quote)]
        elif types == {"array"}:
            names = sorted(case.keys() - ANNOTATIONS - {"items", "minItems", "maxItems"})
            found += [f"{path}{name}" for name in names]
            found += _unenforced(case.get("items", {}), root, f"{path}items.", seen, quote)
        elif types == {"object"}:
            found += [f"{path}{name}" for name in unenforced_in_object(case)]
            for key, member in properties(case, root).items():
                found += _unenforced(member, root, f"{path}properties.{key}.", seen, quote)
        elif not types:
            found += [f"{path}{name}" for name in sorted(case.keys() - ANNOTATIONS)]
    return found
