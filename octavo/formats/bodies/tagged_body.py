"""Calls whose arguments stand in marks one by one; strings are written without quotes."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct

from octavo.formats.bodies.body import Context
from octavo.formats.bodies.json_text import copy_value
from octavo.formats.bodies.named_body import NAME_END
from octavo.formats.bodies.values import (
    KEY,
    cases,
    escaped,
    is_mistaken,
    json_of,
    listed,
    mistakable,
    properties,
    resolved,
    standing_alone,
    takes_any_keys,
    type_of_case,
    types_of,
    unenforced_in_object,
    unenforced_in_string,
)
from octavo.formats.lark import Lark
from octavo.formats.protocol import Call, Tool
from octavo.formats.reader import Marks, MismatchError, Reader, Steps
from octavo.formats.sink import Sink

# In the marks after a key: whether the value is a string, "true" or "false".
IS_STRING = "{is_string}"
_CHOICES = ("anyOf", "oneOf", "allOf")
_FLAG_END = re.compile(r"[^a-z]")


class TaggedBody(Struct, tag_field="kind", tag="tagged", frozen=True, forbid_unknown_fields=True):
    """A call such as <function=f><parameter=x>1</parameter></function>."""

    before_key: str
    after_key: str
    after_value: str
    before_name: str = ""
    after_name: str = ""
    end: str = ""

    def __post_init__(self) -> None:
        before_flag = self.after_key.partition(IS_STRING)[0]
        for name, mark in (
            ("before_key", self.before_key),
            ("after_key", before_flag),
            ("after_value", self.after_value),
        ):
            if not mark.strip():
                raise ValueError(f"`{name}` is blank: arguments have a mark on each side")

    @property
    def marks(self) -> Collection[str]:
        texts = (self.before_name, self.after_name, self.before_key, self.after_key)
        return [part for text in (*texts, self.after_value, self.end) for part in text.split()]

    @property
    def first(self) -> str:
        return ""

    def read(self, reader: Reader, sink: Sink, context: Context) -> Steps[None]:
        yield from reader.pieces(self.before_name.split())
        yield from reader.space()
        name = yield from reader.word(NAME_END)
        context.check(name)
        yield from reader.pieces(self.after_name.split())
        yield from reader.space()
        key_mark, end = self.before_key.split(), self.end.strip() or context.stop
        if not ((yield from reader.is_at(key_mark[0])) or (yield from reader.is_at(end))):
            raise MismatchError
        reader.release()
        sink.call(name)
        schema = context.schema(name)
        schemas = properties(schema)
        separator = "{"
        while (yield from reader.is_at(key_mark[0])):
            key = yield from self._read_key(reader)
            sink.arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
            separator = ", "
            yield from self._read_value(reader, sink, types_of(schemas.get(key, {}), schema))
            yield from reader.space()
        if (yield from reader.peek()):
            sink.arguments("}" if separator == ", " else "{}")
        yield from reader.skip(self.end.strip())

    def write(self, call: Call, index: int) -> str:
        parts = [self.before_name, call.name, self.after_name]
        for key, value in json.loads(call.arguments).items():
            is_string = isinstance(value, str)
            after_key = self.after_key.replace(IS_STRING, json.dumps(is_string))
            text = value if is_string else json.dumps(value, ensure_ascii=False)
            parts += [self.before_key, key, after_key, text, self.after_value]
        return "".join((*parts, self.end))

    def rule(self, tool: Tool, lark: Lark) -> str:
        schema = tool.parameters or {}
        members = properties(schema)
        required = resolved(schema, schema).get("required") or ()
        parts = [lark.text(f"{self.before_name}{tool.name}{self.after_name}")]
        for key, member in members.items():
            rule = self._member(lark.text(self.before_key + key), member, schema, lark)
            parts.append(rule if key in required else f"({rule})?")
        if takes_any_keys(schema):
            key_text = f"{lark.text(self.before_key)} {KEY}"
            parts.append(f"({self._member(key_text, {}, {}, lark)})*")
        return " ".join((*parts, lark.text(self.end)))

    def unenforced(self, tool: Tool) -> list[str]:
        schema = tool.parameters or {}
        found = unenforced_in_object(resolved(schema, schema))
        for key, member in properties(schema).items():
            choices = cases(member, schema)
            types, mistaken = types_of(member, schema), self._mistakable(choices)
            for case in choices:
                if type_of_case(case) <= {"string"}:
                    names = unenforced_in_string(case, self.after_value)
                    texts = filter(lambda one: isinstance(one, str), listed(case))
                    if listed(case):
                        if mistaken and any(is_mistaken(text, types) for text in texts):
                            names.append("const" if "const" in case else "enum")
                    elif mistaken - {"array", "object"}:  # only these show how they begin
                        names.append(next((each for each in _CHOICES if each in member), "type"))
                    found += [f"properties.{key}.{name}" for name in dict.fromkeys(names)]
        return found

    def _mistakable(self, choices: Sequence[Mapping[str, Any]]) -> frozenset[str]:
        """Return the types that the text of a string among these may not have."""
        return frozenset() if IS_STRING in self.after_key else mistakable(choices)

    def _member(
        self, key: str, member: Mapping[str, Any], schema: Mapping[str, Any], lark: Lark
    ) -> str:
        """Return the expression of one argument with its marks."""
        values = []
        choices = cases(member, schema)
        mistaken = self._mistakable(choices)
        for case in choices:
            is_string = type_of_case(case) <= {"string"}
            after_key = self._after_key(lark, is_string=is_string)
            if is_string:
                values.append(f"{after_key} {lark.string_until(case, self.after_value, mistaken)}")
            else:
                value = lark.json(standing_alone(case, schema))
                values.append(f"{after_key} {value} {lark.text(self.after_value)}")
        return f"{key} ({' | '.join(values)})"

    def _after_key(self, lark: Lark, *, is_string: bool) -> str:
        return lark.text(self.after_key.replace(IS_STRING, json.dumps(is_string)))

    def _read_key(self, reader: Reader) -> Steps[str]:
        """Read the marks around a key and the key."""
        yield from reader.pieces(self.before_key.split())
        parts: list[str] = []
        before = self.after_key.partition(IS_STRING)[0].split()
        yield from reader.until(Marks(before[:1]), parts.append)
        yield from reader.pieces(before[1:])
        return "".join(parts).strip()

    def _read_value(self, reader: Reader, sink: Sink, types: frozenset[str]) -> Steps[None]:
        """Read a value and the marks around it; strings go out as they grow."""
        rest = self.after_key.partition(IS_STRING)[2]
        if rest:
            flag = yield from reader.word(_FLAG_END)
            types = frozenset(("string",)) if flag == "true" else types - {"string"}
            yield from reader.pieces(rest.split())
        if self.after_key.endswith("\n"):
            yield from reader.skip("\n")
        close = Marks((self.after_value.rstrip(), self.after_value.strip()))
        if types == {"string"}:
            sink.arguments('"')
            if (yield from reader.until(close, lambda text: sink.arguments(escaped(text)))):
                sink.arguments('"')
            return
        parts: list[str] = []
        if types and "string" not in types and (yield from reader.peek()) in ("{", "["):
            # The strings in it may contain the mark that ends the value.
            yield from copy_value(reader, parts.append, self.after_value.strip())
        if (yield from reader.until(close, parts.append)):
            sink.arguments(json_of("".join(parts), types))
