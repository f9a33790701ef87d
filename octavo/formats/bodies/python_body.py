"""Calls that are written as in Python: f(city="Paris", days=2)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct

from octavo.formats.bodies.body import Context
from octavo.formats.bodies.named_body import NAME_END
from octavo.formats.bodies.python_text import copy_literal
from octavo.formats.bodies.values import (
    ANNOTATIONS,
    KEY,
    cases,
    properties,
    resolved,
    standing_alone,
    takes_any_keys,
    unenforced_in_object,
)
from octavo.formats.lark import Lark
from octavo.formats.protocol import Call, Tool
from octavo.formats.reader import Marks, MismatchError, Reader, Steps
from octavo.formats.sink import Sink

# The characters that begin a literal and no name.
_LITERALS = frozenset("'\"[({-0123456789")

_WORDS = {"boolean": ("True", "False"), "null": ("None",)}


class PythonBody(Struct, tag_field="kind", tag="python", frozen=True, forbid_unknown_fields=True):
    """A call with keyword arguments, whose literals become JSON."""

    @property
    def marks(self) -> Collection[str]:
        return ()

    @property
    def first(self) -> str:
        return ""

    def read(self, reader: Reader, sink: Sink, context: Context) -> Steps[None]:
        yield from reader.space()
        name = yield from reader.word(NAME_END)
        context.check(name)
        yield from reader.expect("(")
        reader.release()
        sink.call(name)
        try:
            yield from self._read_arguments(reader, sink, list(properties(context.schema(name))))
        except MismatchError:  # what is not Python goes out as it is written
            end = Marks((context.stop, "\n"))
            yield from reader.until(end, sink.arguments)

    def write(self, call: Call, index: int) -> str:
        arguments = json.loads(call.arguments).items()
        return f"{call.name}({', '.join(f'{key}={literal(value)}' for key, value in arguments)})"

    def rule(self, tool: Tool, lark: Lark) -> str:
        schema = tool.parameters or {}
        members = {
            key: f"{lark.text(key + '=')} {_value(member, schema, lark)}"
            for key, member in properties(schema).items()
        }
        if takes_any_keys(schema):
            pair = f'{KEY} "=" {_value({}, {}, lark)}'
            inside = f'({pair} (", " {pair})*)?'
        else:
            inside = lark.sequence(members, resolved(schema, schema).get("required") or ())
        return f"{lark.text(tool.name + '(')} {inside} {lark.text(')')}"

    def unenforced(self, tool: Tool) -> list[str]:
        return unenforced_in_object(resolved(tool.parameters or {}, tool.parameters or {}))

    def _read_arguments(self, reader: Reader, sink: Sink, names: list[str]) -> Steps[None]:
        """Read the arguments up to the closing parenthesis."""
        separator = "{"
        while True:
            yield from reader.space()
            if (yield from reader.skip(")")):
                sink.arguments("}" if separator == ", " else "{}")
                return
            first = yield from reader.peek()
            if first in _LITERALS and names:  # an argument by its position
                key = names[0]
            else:
                key = yield from reader.word(NAME_END)
                yield from reader.pieces(("=",))
            if key in names:
                names.remove(key)
            if not key:
                raise MismatchError
            sink.arguments(f"{separator}{json.dumps(key)}: ")
            yield from copy_literal(reader, sink.arguments)
            separator = ", "
            yield from reader.space()
            if not (yield from reader.skip(",")) and not (yield from reader.is_at(")")):
                raise MismatchError


def literal(value: Any) -> str:
    """Return the Python literal of a JSON value."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{literal(k)}: {literal(v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)


def _value(member: Mapping[str, Any], schema: Mapping[str, Any], lark: Lark) -> str:
    """Return the expression of a literal; inside collections, constants are written as in JSON."""
    values: list[str] = []
    for case in cases(member, schema):
        words = () if case.keys() - ANNOTATIONS else _WORDS.get(str(case.get("type")), ())
        if words:
            values += map(lark.text, words)
        else:
            values.append(lark.json(standing_alone(case, schema)))
    return f"({' | '.join(values)})"
